//go:build integration

package main

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3/s3test"
)

// reader is who reads the documentation and does what it says: with a home, a
// directory to work in and a service, all of their own.
type reader struct {
	root, home, work string
	environ          []string
	// instead says what stands here for what the pages name.
	instead *strings.Replacer
}

func newReader(t *testing.T) *reader {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{root: root, home: t.TempDir(), work: t.TempDir()}
	bucket := s3test.Start(t, "versitygw").NewBucket(t).Config()
	address, profiles := freeAddress(t), freeAddress(t)
	r.instead = strings.NewReplacer(
		"127.0.0.1:48217", address, "127.0.0.1:6060", profiles,
		"https://minio.example.internal", bucket.S3Endpoint, "aivory-data", bucket.S3Bucket, "us-east-1", bucket.S3Region,
		`"access-key"`, `"`+bucket.S3AccessKey+`"`, `"secret-key"`, `"`+bucket.S3SecretKey+`"`,
	)
	r.environ = append(os.Environ(), "HOME="+r.home, "XDG_CONFIG_HOME=", "SANDBOX_DRIVER=docker", "PATH="+root+"/bin:"+os.Getenv("PATH"),
		"SANDBOX_LISTEN="+address, "SANDBOX_PPROF_LISTEN="+profiles, "SANDBOX_INSTANCE=test-docs-"+randomHex()[:8], "SANDBOX_STATE_DIR="+t.TempDir(),
		"SANDBOX_LOCAL_STORAGE_DIR="+t.TempDir(), "SANDBOX_POOL_SIZE=0")
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GOFLAGS"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		r.environ = append(r.environ, name+"="+strings.TrimSpace(string(value)))
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("AIVORY_CACHE_DIR") == "" {
		r.environ = append(r.environ, "AIVORY_CACHE_DIR="+filepath.Join(cache, "aivory-sandbox"))
	}
	for name, text := range map[string]string{
		"data.csv":  "a,b\n1,2\n",
		"script.py": "import os\nname = next(n for n in ('data.csv', 'uploads/data.csv') if os.path.exists(n))\nprint('ran', open(name).read().split()[1])\nopen('/workspace/outputs/result.csv', 'w').write('1')\n",
		"go.mod":    "module example.com/caller\n\ngo 1.26\n",
	} {
		if err := os.WriteFile(filepath.Join(r.work, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(root, "images"), filepath.Join(r.work, "images")); err != nil {
		t.Fatal(err)
	}
	return r
}

// proxy makes a module proxy that has the client of this tree and nothing else: so
// nothing else is needed to call it. It returns the environment in which go uses it.
func (r *reader) proxy(t *testing.T) []string {
	t.Helper()
	const module, version = "github.com/hjxwz123/aivory-sandbox", "v0.0.1"
	dir := t.TempDir()
	versions := filepath.Join(dir, module, "@v")
	if err := os.MkdirAll(versions, 0o700); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	packed := zip.NewWriter(&archive)
	sources, err := filepath.Glob(filepath.Join(r.root, "client", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(sources, filepath.Join(r.root, "go.mod")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		w, err := packed.Create(module + "@" + version + strings.TrimPrefix(path, r.root))
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(r.root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": []byte(`{"Version":"` + version + `"}`), version + ".mod": mod, version + ".zip": archive.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(versions, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return append(slices.Clone(r.environ), "GOPROXY=file://"+dir, "GONOSUMDB=*", "GOMODCACHE="+t.TempDir(), "GOFLAGS=-modcacherw", "GOTOOLCHAIN=local")
}

// freeAddress is where nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// begin runs the block that starts the service, and returns when that has said
// that it is ready. The test's end interrupts it.
func (r *reader) begin(t *testing.T, text string) (greeting string) {
	t.Helper()
	orphansAreInits(t) // also who says that the service is ready
	cmd := exec.Command("bash", "-ec", text)
	cmd.Dir, cmd.Env = r.root, r.environ
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := &tailWriter{}
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		once := sync.OnceFunc(func() { close(ready) })
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(said, lines.Text())
			if strings.HasPrefix(lines.Text(), "Ready. ") {
				once()
			}
		}
	}()
	t.Cleanup(func() {
		// What Ctrl-C does. It may have ended by itself, which was told then.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		<-ended
		_ = cmd.Wait() // make says that it was interrupted
		if t.Failed() {
			t.Logf("the service's log:\n%s", said.since(0))
		}
	})
	select {
	case <-ready:
	case <-ended:
		t.Fatal("the service did not start")
	}
	// Who said it ends with that, and nobody in the group may wait for its end in
	// vain: a dead process would stay for as long as the service.
	for attempt := 0; ; attempt++ {
		dead := deadOf(t, cmd.Process.Pid)
		if len(dead) == 0 {
			break
		}
		if attempt == 100 {
			t.Errorf("dead processes stay: %q", dead)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return said.since(0)
}

// deadOf returns the dead processes of a group that nobody has waited for.
func deadOf(t *testing.T, group int) (dead []string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// After the name, which may hold anything: state, parent, group.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 2 && fields[0] == "Z" && fields[2] == fmt.Sprint(group) {
			dead = append(dead, string(text[:bytes.LastIndexByte(text, ')')+1]))
		}
	}
	return dead
}

// shell runs the shell blocks of a page in one shell, and returns what each
// printed.
func (r *reader) shell(t *testing.T, all []block) map[int]string {
	t.Helper()
	out := t.TempDir()
	var script strings.Builder
	script.WriteString("set -e\nexport SANDBOX_URL=http://127.0.0.1:48217\nexport SANDBOX_API_KEY=$(cat ~/.config/aivory-sandbox/api-key)\n")
	// The doctor is for a service that is not running.
	script.WriteString("doctor_dir=" + t.TempDir() + "\naivory-sandbox() { if [ \"$1\" = doctor ]; then SANDBOX_LISTEN=127.0.0.1:0 SANDBOX_STATE_DIR=$doctor_dir command aivory-sandbox \"$@\"; else command aivory-sandbox \"$@\"; fi; }\n")
	for _, b := range all {
		fmt.Fprintf(&script, "exec >%[1]s/%[2]d 2>&1\n%[3]s\n: >%[1]s/%[2]d.done\n", out, b.nth, b.text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", r.instead.Replace(script.String()))
	cmd.Dir, cmd.Env = r.work, r.proxy(t)
	err := cmd.Run()
	said := map[int]string{}
	for _, b := range all {
		text, _ := os.ReadFile(fmt.Sprint(out, "/", b.nth))
		said[b.nth] = string(text)
		if _, e := os.Stat(fmt.Sprint(out, "/", b.nth, ".done")); e != nil {
			t.Fatalf("%v failed, %v:\n%s\nit printed\n%s", b, err, b.text, text)
		}
	}
	return said
}

// started is a variable that a Go block declares.
var started = regexp.MustCompile(`(?m)^([a-zA-Z, ]+) := `)

// program runs the Go blocks of a page: a whole program, or parts that follow each
// other in one, and returns what each printed.
func (r *reader) program(t *testing.T, all []block) map[int]string {
	t.Helper()
	const mark = "\x00%d\x00\n"
	var text strings.Builder
	if strings.HasPrefix(all[0].text, "package main") {
		if len(all) > 1 {
			t.Fatalf("%v: there are more programs on the page", all[1])
		}
		text.WriteString(all[0].text)
	} else {
		text.WriteString(`package main

import ("context"; "fmt"; "io"; "log"; "os"; "strings"; "time"; "github.com/hjxwz123/aivory-sandbox/client")

var _, _, _ = io.EOF, strings.NewReader, time.Now

func main() {
	ctx := context.Background()
	service, err := client.FromEnv()
	if err != nil { log.Fatal(err) }
`)
		for _, b := range all {
			fmt.Fprintf(&text, "fmt.Fprintf(os.Stdout, %q, %d)\n", mark, b.nth)
			for line := range strings.Lines(b.text) {
				text.WriteString(line)
			}
			for _, names := range started.FindAllStringSubmatch(b.text, -1) {
				fmt.Fprintf(&text, "%s = %s\n", strings.Repeat("_, ", strings.Count(names[1], ","))+"_", names[1])
			}
			text.WriteString("if err != nil { log.Fatal(err) }\n")
		}
		text.WriteString("}\n")
	}
	// In here, so that the module is this one.
	dir, err := os.MkdirTemp(".", "_docs-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(r.instead.Replace(text.String())), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(r.home, ".config/aivory-sandbox/api-key"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := filepath.Abs(filepath.Join(dir, "program"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", program, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s\n%s", all[0], err, out, &text)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir = r.work
	cmd.Env = append(slices.Clone(r.environ), r.instead.Replace("SANDBOX_URL=http://127.0.0.1:48217"), "SANDBOX_API_KEY="+string(key))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", all[0].page, err, out)
	}
	if len(all) == 1 && strings.HasPrefix(all[0].text, "package main") {
		return map[int]string{all[0].nth: string(out)}
	}
	said := map[int]string{}
	for _, b := range all {
		_, rest, found := strings.Cut(string(out), fmt.Sprintf(mark, b.nth))
		if !found {
			t.Fatalf("%v was not reached: %s", b, out)
		}
		said[b.nth], _, _ = strings.Cut(rest, "\x00")
	}
	return said
}

// TestDocumentation does what the documentation says: it starts a service as the
// README does, and runs the blocks of each page against it.
func TestDocumentation(t *testing.T) {
	wantsDocker(t)
	r := newReader(t)
	instance := ""
	for _, e := range r.environ {
		if name, found := strings.CutPrefix(e, "SANDBOX_INSTANCE="); found {
			instance = name
		}
	}
	t.Cleanup(func() {
		if _, err := (&testService{instance: instance}).removeContainers(); err != nil {
			t.Error(err)
		}
	})
	matches := func(t *testing.T, b block, said string) {
		t.Helper()
		_, h, _ := b.find()
		if !regexp.MustCompile(h.want).MatchString(said) {
			t.Errorf("%v:\n%s\nprinted\n%s\nwhich is not like %s", b, b.text, said, h.want)
		}
	}
	pages := map[string][]block{}
	var order []string
	for _, b := range blocks(t) {
		if _, h, ok := b.find(); !ok || !h.live || h.slow && !soak {
			continue
		}
		if strings.HasPrefix(b.text, "make run") {
			matches(t, b, r.begin(t, b.text))
			continue
		}
		if pages[b.page] == nil {
			order = append(order, b.page)
		}
		pages[b.page] = append(pages[b.page], b)
	}
	for _, page := range order {
		t.Run(page, func(t *testing.T) {
			var shell, program []block
			for _, b := range pages[page] {
				if b.syntax == "go" {
					program = append(program, b)
				} else {
					shell = append(shell, b)
				}
			}
			for _, group := range []struct {
				blocks []block
				run    func(*testing.T, []block) map[int]string
			}{{shell, r.shell}, {program, r.program}} {
				if len(group.blocks) == 0 {
					continue
				}
				said := group.run(t, group.blocks)
				for _, b := range group.blocks {
					matches(t, b, said[b.nth])
				}
			}
		})
	}
}
