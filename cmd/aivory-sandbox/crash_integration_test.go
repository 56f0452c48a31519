//go:build integration

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3/s3test"
)

// crashTTL is the idle time of sessions in the crash test.
const crashTTL = 5 * time.Second

// unfinished is a file that a program leaves when it is cut short.
const unfinished = "unfinished"

// trigger kills a service in the middle of an operation of one kind.
type trigger struct {
	kind  string
	delay time.Duration // from the operation's beginning

	mu   sync.Mutex
	skip int // operations of that kind that are let through before
	done chan struct{}
}

// begins is told of every operation.
func (g *trigger) begins(kind string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if kind != g.kind || g.skip < 0 {
		return
	}
	if g.skip--; g.skip < 0 {
		time.AfterFunc(g.delay, func() { close(g.done) })
	}
}

// pace is how long operations of each kind take here and now.
type pace struct {
	mu    sync.Mutex
	takes map[string]time.Duration
}

func (p *pace) took(kind string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takes[kind] = (2*p.takes[kind] + d) / 3
}

func (p *pace) of(kind string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takes[kind]
}

// revision is what is known of a file: its size tells which version it is.
type revision struct {
	sure  int          // the last one that a 200 confirmed, 0 for none
	maybe map[int]bool // later ones, whose answers never came
}

// talk is a conversation: a key, its session of the moment and what its client
// knows of its files. It is used by one goroutine at a time.
type talk struct {
	t       *testing.T
	key     string
	block   map[string]any
	rng     *rand.Rand
	weather *weather
	pace    *pace
	trigger *trigger // of the round

	service *testService // of the round
	id      string       // none where empty
	last    time.Time    // of the last call that was served began
	ending  string       // the body of a DELETE that is to be answered yet
	looked  bool         // the session's files were looked at
	trusted bool         // all of them must be there
	files   map[string]revision
	made    int
	tally   map[string]int
	history []string // of calls
}

// fail fails the test and tells what the client did.
func (k *talk) fail(format string, args ...any) {
	k.t.Helper()
	k.t.Errorf(k.key+": "+format+"\nits calls:\n%s", append(args, strings.Join(k.history[max(0, len(k.history)-40):], "\n"))...)
}

// discardKnown discards what a session that is there has and had.
const discardKnown = `{"discard":true}`

// content is the content of a version of a file.
func content(path string, size int) []byte {
	if strings.HasPrefix(path, "big") {
		b := make([]byte, size)
		_, _ = rand.NewChaCha8(sha256.Sum256([]byte(path + strconv.Itoa(size)))).Read(b) // never fails
		return b
	}
	return []byte(strings.Repeat(path+"|", size/len(path)+1)[:size])
}

// errDied means that no answer came: the service was killed.
var errDied = errors.New("the service died")

// call sends a request of a kind. It fails with errDied where no answer comes.
func (k *talk) call(kind, method, path string, body any) (answer, error) {
	k.trigger.begins(kind)
	began := time.Now()
	a := k.service.do(context.Background(), method, path, body)
	answered := time.Now()
	k.history = append(k.history, fmt.Sprintf("%s to %s: %s %s of session %s, to %s: %d %.100q, %v",
		began.Format("05.000"), answered.Format("05.000"), kind, path, k.id, k.service.url, a.status, a.body, a.err))
	if a.err != nil || a.status == 0 {
		k.tally["unanswered "+kind]++
		return a, errDied
	}
	k.pace.took(kind, a.took)
	k.tally[fmt.Sprintf("%s %d", kind, a.status)]++
	if k.id != "" && a.status == 404 {
		// Between the last call's begin and this one's answer it was not used all the time.
		if idle := answered.Sub(k.last); idle < crashTTL {
			k.fail("session %s is gone after %v: %v", k.id, idle, a)
		}
		k.id = ""
	} else if a.status == 200 {
		k.last = began
	} else if a.status != 429 && a.status != 503 {
		k.fail("%s: %v", kind, a)
	}
	return a, nil
}

// go on with the conversation until the service dies.
func (k *talk) run(died <-chan struct{}) {
	for {
		select {
		case <-died:
			return
		default:
		}
		if k.step(died) != nil {
			return
		}
	}
}

func (k *talk) step(died <-chan struct{}) error {
	switch {
	case k.ending != "":
		return k.end()
	case k.id == "":
		return k.create()
	case !k.looked:
		return k.look()
	}
	switch n := k.rng.IntN(100); {
	case n < 30:
		return k.put(fmt.Sprintf("file-%d.txt", k.made), 20+k.rng.IntN(2000))
	case n < 40:
		return k.put("latest.txt", 1000+k.made)
	case n < 50:
		return k.put("big.bin", 6<<20+k.made)
	case n < 70:
		return k.exec(fmt.Sprintf("outputs/made-%d.txt", k.made), 20+k.rng.IntN(2000))
	case n < 85:
		k.ending = "{}"
		return k.end()
	case n < 88:
		k.ending = discardKnown
		return k.end()
	default:
		k.trigger.begins("reap")
		select {
		case <-time.After(crashTTL + time.Duration(k.rng.IntN(1500))*time.Millisecond):
			return k.exec("latest.txt", 1000+k.made)
		case <-died:
			return errDied
		}
	}
}

func (k *talk) create() error {
	clear := k.weather.watch()
	a, err := k.call("create", "POST", "/sessions", map[string]any{
		"archive_key": k.key, "idle_ttl_sec": int(crashTTL / time.Second), "storage": k.block,
	})
	if err != nil || a.status != 200 {
		return err
	}
	if k.id, err = sessionID(a); err != nil {
		k.t.Error(err)
	}
	k.looked, k.trusted = false, clear()
	return nil
}

// look compares a new session's files with what is known. Some may be missing
// only where the store failed. Then the client lets the session go unused and
// asks for another, or writes into this one what must come back with the rest.
func (k *talk) look() error {
	a, err := k.call("list", "POST", "/files/list", map[string]any{"session_id": k.id})
	if err != nil || a.status != 200 {
		return err
	}
	var listing struct {
		Files []struct {
			Path string
			Size int
		}
	}
	if err := json.Unmarshal(a.body, &listing); err != nil {
		k.t.Errorf("list: %v: %v", err, a)
	}
	found := map[string]int{}
	for _, f := range listing.Files {
		if f.Path != unfinished {
			found[f.Path] = f.Size
		}
	}
	wrong := k.compare(found)
	k.looked = true
	if len(wrong) == 0 {
		for path, size := range found { // what is there now is what there is
			k.files[path] = revision{sure: size}
		}
		maps.DeleteFunc(k.files, func(path string, _ revision) bool { _, ok := found[path]; return !ok })
		return nil
	}
	if k.trusted {
		k.fail("session %s: %q", k.id, wrong)
		k.files = map[string]revision{}
	}
	k.tally["not restored"]++
	if k.rng.IntN(2) == 0 {
		k.tally["went on without"]++
		return nil
	}
	k.ending = "{}"
	return k.end()
}

// compare says what is wrong with the files of a session.
func (k *talk) compare(found map[string]int) (wrong []string) {
	for path, v := range k.files {
		if size := found[path]; size != v.sure && !v.maybe[size] {
			wrong = append(wrong, fmt.Sprintf("%s has size %d, not %d or one of %v", path, size, v.sure, slices.Collect(maps.Keys(v.maybe))))
		}
	}
	for path := range found {
		if _, known := k.files[path]; !known {
			wrong = append(wrong, path+" has come back")
		}
	}
	return wrong
}

// write notes that a version is about to be written, and later that it was.
func (k *talk) write(path string, size int, send func() (bool, error)) error {
	k.made++
	v := k.files[path]
	next := revision{sure: v.sure, maybe: map[int]bool{size: true}}
	maps.Copy(next.maybe, v.maybe)
	k.files[path] = next
	done, err := send()
	if done {
		k.files[path] = revision{sure: size}
	}
	return err
}

func (k *talk) put(path string, size int) error {
	return k.write(path, size, func() (bool, error) {
		a, err := k.call("put", "POST", "/files", map[string]any{"session_id": k.id, "path": path, "data_base64": content(path, size)})
		return err == nil && a.status == 200, err
	})
}

func (k *talk) exec(path string, size int) error {
	return k.write(path, size, func() (bool, error) {
		a, err := k.call("exec", "POST", "/exec", map[string]any{
			"session_id": k.id, "code": fmt.Sprintf("import os\nnew, path, size = %q, %q, %d\nopen(new, 'w').write((path + '|') * size)\nos.truncate(new, size)\nos.rename(new, path)", unfinished, path, size),
		})
		if err != nil || a.status != 200 {
			return false, err
		}
		r, err := parseResult(a)
		if err != nil || r.Exit != 0 {
			k.fail("exec: %v, %v", r, err)
		}
		return true, nil
	})
}

// end releases the session, as often as it takes to be answered.
func (k *talk) end() error {
	if k.ending == discardKnown && time.Since(k.last) > crashTTL-time.Second {
		// It may have expired: then nobody but the client knows its key and its store.
		k.ending = string(must(json.Marshal(map[string]any{"discard": true, "archive_key": k.key, "storage": k.block})))
	}
	a, err := k.call("delete", "DELETE", "/sessions/"+k.id, k.ending)
	if err != nil || a.status != 200 {
		return err
	}
	if strings.Contains(k.ending, "discard") {
		k.files = map[string]revision{}
		k.tally["discarded"]++
	}
	k.id, k.ending = "", ""
	return nil
}

// TestKilledAtAnyMoment kills the service over and over in the middle of what it
// does, while its store fails now and then. In the end every file that was
// confirmed is there, and nothing is left over.
func TestKilledAtAnyMoment(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("AIVORY_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("AIVORY_SEED=%d draws the same again", seed)
	t.Run("local", func(t *testing.T) {
		dir := t.TempDir()
		w := smallDisk(t, dir)
		store := localStore(t, dir)
		crash(t, store, w, seed, []string{"SANDBOX_LOCAL_STORAGE_DIR=" + dir}, func() []string {
			found, err := fs.Glob(os.DirFS(dir), ".aivory-tmp/*")
			if err != nil {
				t.Error(err)
			}
			return found
		})
	})
	t.Run("s3", func(t *testing.T) {
		server := s3test.Start(t, "versitygw")
		bucket := server.NewBucket(t)
		address, w := newFlaky(t, server.URL, rand.New(rand.NewPCG(seed, 1)))
		store := openStore(t, "", s3Block(bucket, ""))
		store.block = s3Block(bucket, address)
		crash(t, store, w, seed+1, []string{"SANDBOX_S3_MAX_ATTEMPTS=2", "SANDBOX_S3_CONNECT_TIMEOUT_S=2", "SANDBOX_S3_READ_TIMEOUT_S=5"},
			func() []string { return bucket.Uploads(t) })
	})
}

func crash(t *testing.T, store objectStore, w *weather, seed uint64, settings []string, halfStored func() []string) {
	rng := rand.New(rand.NewPCG(seed, 0))
	s := newState(t)
	settings = append(settings, "SANDBOX_LOG_LEVEL=debug", "SANDBOX_PRELOAD=", "SANDBOX_ARCHIVE_TIMEOUT_S=30", "SANDBOX_QUEUE_TIMEOUT_SECONDS=30", "SANDBOX_MAX_OUTPUT_BYTES=1048576")
	pace := &pace{takes: map[string]time.Duration{"create": time.Second, "put": 200 * time.Millisecond, "exec": 500 * time.Millisecond, "delete": 500 * time.Millisecond}}
	tally := map[string]int{}
	talks := make([]*talk, 3)
	for i := range talks {
		talks[i] = &talk{
			t: t, key: fmt.Sprintf("talk-%d", i), block: store.block, weather: w, pace: pace,
			rng: rand.New(rand.NewPCG(seed, uint64(i+1))), files: map[string]revision{}, tally: map[string]int{},
		}
	}

	stop := make(chan struct{})
	var blowing sync.WaitGroup
	blowing.Go(func() { w.blow(rand.New(rand.NewPCG(seed, 100)), stop) })
	fair := sync.OnceFunc(func() { close(stop); blowing.Wait() })
	defer fair()
	for round := range times(10, 110) {
		g := &trigger{kind: []string{"create", "exec", "put", "delete", "reap", "start"}[rng.IntN(6)], skip: rng.IntN(3), done: make(chan struct{})}
		g.delay = time.Duration(rng.Float64() * 1.2 * float64(pace.of(g.kind)))
		p := s.fork(t, "/proc/self/exe", append(slices.Clone(settings), "SANDBOX_POOL_SIZE=1")...)
		if g.kind == "start" {
			time.Sleep(time.Duration(rng.IntN(600)) * time.Millisecond)
			p.kill()
			continue
		}
		if g.kind == "reap" {
			g.skip, g.delay = 0, crashTTL+time.Duration(rng.Float64()*float64(time.Second+2*pace.of("delete")))
		}
		p.healthy(t)
		died := make(chan struct{})
		var talking sync.WaitGroup
		for _, k := range talks {
			k.service, k.trigger = &p.testService, g
			talking.Go(func() { k.run(died) })
		}
		timeout := time.NewTimer(20 * time.Second)
		select {
		case <-g.done:
		case <-timeout.C:
		}
		timeout.Stop()
		p.kill()
		close(died)
		talking.Wait()
		if t.Failed() {
			t.Fatalf("in round %d, killed in %s", round, g.kind)
		}
	}

	fair()
	p := s.spawn(t, settings...)
	for _, k := range talks {
		k.service, k.trigger = &p.testService, &trigger{}
		k.settle()
		for what, n := range k.tally {
			tally[what] += n
		}
	}
	t.Logf("%v", tally)
	spool := func() []os.DirEntry { return must(os.ReadDir(filepath.Join(s.stateDir, "spool"))) }
	var ids []string
	for range 600 { // sessions that nobody was told of have to expire first
		var err error
		if ids, err = s.containers(); err != nil {
			t.Fatal(err)
		}
		if len(ids) == 0 && len(spool()) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(ids) != 0 || len(spool()) != 0 {
		t.Errorf("left: runners %q, in the spool %v", ids, spool())
	}
	p.terminate(t)
	if left := halfStored(); len(left) != 0 {
		t.Errorf("half-stored objects are left: %q", left)
	}
	for dir, want := range map[string][]string{"kept": nil, "tmp": nil, "sessions": {"complete"}} {
		var names []string
		for _, e := range must(os.ReadDir(filepath.Join(s.stateDir, dir))) {
			names = append(names, e.Name())
		}
		if !slices.Equal(names, want) {
			t.Errorf("left in %s: %q", dir, names)
		}
	}
	t.Logf("objects: %q", store.keys(t))
}

// settle ends the session of the moment and looks whether a new one has every
// file, in fair weather.
func (k *talk) settle() {
	k.t.Helper()
	for try := 0; k.id != "" || k.ending != ""; try++ {
		if k.ending == "" {
			k.ending = "{}"
		}
		if err := k.end(); err != nil || try > 10 {
			k.t.Fatalf("%s: the session cannot be released: %v", k.key, err)
		}
	}
	k.t.Logf("%s: %d files", k.key, len(k.files))
	if err := k.create(); err != nil || k.id == "" {
		k.t.Fatalf("%s: no new session: %v", k.key, err)
	}
	r := testSession{k.service, k.id}.run(k.t, `
import hashlib, os
for top, dirs, files in os.walk("/workspace"):
    for name in files:
        path = os.path.join(top, name)
        print(os.path.relpath(path, "/workspace"), os.path.getsize(path), hashlib.sha256(open(path, "rb").read()).hexdigest())
`, time.Minute)
	found := map[string]int{}
	for line := range strings.Lines(r.Stdout) {
		fields := strings.Fields(line)
		if fields[0] == unfinished {
			continue
		}
		size := must(strconv.Atoi(fields[1]))
		found[fields[0]] = size
		if sum := sha256.Sum256(content(fields[0], size)); fields[2] != hex.EncodeToString(sum[:]) {
			k.fail("%s has content of no version", fields[0])
		}
	}
	if wrong := k.compare(found); len(wrong) > 0 || r.Exit != 0 {
		k.fail("%q, %v", wrong, r.Stderr)
	}
	k.ending = "{}"
	if err := k.end(); err != nil {
		k.t.Errorf("%s: %v", k.key, err)
	}
}
