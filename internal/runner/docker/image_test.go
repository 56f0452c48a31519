package docker_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
)

var (
	noImage  = reply(404, `{"message":"No such image: img:v1"}`)
	hasImage = reply(200, `{"Id":"sha256:1"}`)
)

const pullPath = "POST /images/create"

func imageReady(t *testing.T, d *docker.Driver) bool {
	t.Helper()
	info, err := d.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.ImageReady
}

func TestImageIsPulledOnDemand(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("GET /images/img:v1/json", inTurn(noImage, hasImage))
	f.handle(pullPath, reply(200, `{"status":"Pulling"}{"status":"Done"}`))
	d := f.driver(t, nil)
	for range 2 {
		if _, err := d.Create(t.Context(), testSpec); err != nil {
			t.Fatal(err)
		}
	}
	if n, m := f.count(pullPath), f.count("GET /images/img:v1/json"); n != 1 || m != 2 {
		t.Errorf("pulled %d times, looked %d times", n, m)
	}
}

// TestPullIsShared: many creates wait for one pull, the first of them goes away,
// and the others get their runners all the same. The call timeout does not count.
func TestPullIsShared(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("GET /images/img:v1/json", noImage)
	begun, finish := make(chan struct{}), make(chan struct{})
	f.handle(pullPath, func(w http.ResponseWriter, r *http.Request) {
		close(begun) // a second pull would panic
		_, _ = io.WriteString(w, `{"status":"Pulling"}`)
		w.(http.Flusher).Flush()
		<-finish
		f.handle("GET /images/img:v1/json", hasImage)
	})
	d := f.driver(t, func(c *docker.Config) { c.CallTimeout = time.Second })

	reason := errors.New("client hung up")
	ctx, cancel := context.WithCancelCause(t.Context())
	first := make(chan error)
	go func() { _, err := d.Create(ctx, testSpec); first <- err }()
	<-begun
	others := make(chan error)
	for range 5 {
		go func() { _, err := d.Create(context.Background(), testSpec); others <- err }()
	}
	cancel(reason)
	if err := <-first; !errors.Is(err, reason) {
		t.Errorf("the one who left: %v", err)
	}
	for f.count("GET /images/img:v1/json") < 6 { // the others are at the pull, or about to be
		time.Sleep(time.Millisecond)
	}
	time.Sleep(1100 * time.Millisecond)
	if imageReady(t, d) {
		t.Error("ready before the pull has ended")
	}
	close(finish)
	for range 5 {
		if err := <-others; err != nil {
			t.Error(err)
		}
	}
	if !imageReady(t, d) {
		t.Error("not ready after the pull")
	}
}

func TestPullFails(t *testing.T) {
	for _, x := range []struct {
		name string
		pull http.HandlerFunc
		want string
	}{
		{"refused", reply(404, `{"message":"pull access denied for img"}`), "pull access denied"},
		{"fails half-way", reply(200, `{"status":"Pulling"}{"errorDetail":{"message":"toomanyrequests"},"error":"toomanyrequests"}`), "toomanyrequests"},
		{"is cut off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"status":"Pull`)
		}, "unexpected EOF"},
		{"just ends", reply(200, `{"status":"Pulling"}`), "ended without it"},
		{"hangs", hang, "not done within 50ms"},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newFakeEngine(t).start(t)
			f.handle("GET /images/img:v1/json", noImage)
			f.handle(pullPath, x.pull)
			d := f.driver(t, func(c *docker.Config) {
				if x.name == "hangs" {
					c.PullTimeout = 50 * time.Millisecond
				}
			})
			_, err := d.Create(t.Context(), testSpec)
			var e *fault.Error
			if !errors.As(err, &e) || e.Kind != fault.Internal || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), "img:v1") {
				t.Fatalf("got %v, want %q", err, x.want)
			}
			if e.Detail != "the runner image is not available" {
				t.Errorf("a client reads %q", e.Detail)
			}
			if imageReady(t, d) {
				t.Error("ready")
			}
			// The next create tries again.
			f.handle(pullPath, func(w http.ResponseWriter, _ *http.Request) {
				f.handle("GET /images/img:v1/json", hasImage)
			})
			if _, err := d.Create(t.Context(), testSpec); err != nil {
				t.Errorf("the next time: %v", err)
			}
		})
	}
}

// TestImageIsLost: somebody removed the image while the service runs.
func TestImageIsLost(t *testing.T) {
	f := newFakeEngine(t).start(t)
	d := f.driver(t, nil)
	if _, err := d.Create(t.Context(), testSpec); err != nil {
		t.Fatal(err)
	}
	made := reply(201, `{"Id":"`+fakeID+`"}`)
	f.handle("POST /containers/create", inTurn(noImage, made))
	f.handle("GET /images/img:v1/json", inTurn(noImage, hasImage))
	f.handle(pullPath, reply(200, ""))
	if _, err := d.Create(t.Context(), testSpec); err != nil {
		t.Fatal(err)
	}
	if n := f.count(pullPath); n != 1 || !imageReady(t, d) {
		t.Errorf("pulled %d times", n)
	}

	// It is lost over and over: one try is enough.
	f.handle("POST /containers/create", noImage)
	f.handle("GET /images/img:v1/json", hasImage)
	before := f.count("POST /containers/create")
	if _, err := d.Create(t.Context(), testSpec); err == nil {
		t.Error("created")
	}
	if n := f.count("POST /containers/create") - before; n != 2 {
		t.Errorf("%d tries", n)
	}
	if imageReady(t, d) {
		t.Error("ready")
	}
}

func TestPullOnStart(t *testing.T) {
	f := newFakeEngine(t).start(t)
	begun, finish := make(chan struct{}), make(chan struct{})
	f.handle(pullPath, func(http.ResponseWriter, *http.Request) { close(begun); <-finish })
	d := f.driver(t, nil)
	d.PullOnStart()
	<-begun
	if imageReady(t, d) {
		t.Error("ready at once")
	}
	// The image is there already, perhaps an older one: a create does not wait.
	if _, err := d.Create(t.Context(), testSpec); err != nil {
		t.Error(err)
	}
	close(finish)
}

func TestPullOnStartFails(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle(pullPath, reply(500, `{"message":"no route to registry"}`))
	var log bytes.Buffer
	d, err := docker.New(docker.Config{Host: "unix://" + f.socket, Image: "img:v1", Logger: logTo(&log)})
	if err != nil {
		t.Fatal(err)
	}
	d.PullOnStart()
	for f.count(pullPath) == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	if err := d.Close(); err != nil { // waits for the pull
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "no route to registry") {
		t.Errorf("log:\n%s", log.String())
	}
}

func TestCloseEndsPull(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("GET /images/img:v1/json", noImage)
	begun := make(chan struct{})
	f.handle(pullPath, func(w http.ResponseWriter, r *http.Request) { close(begun); hang(w, r) })
	d := f.driver(t, nil)
	done := make(chan error)
	go func() { _, err := d.Create(context.Background(), testSpec); done <- err }()
	<-begun
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("got %v", err)
	}
}

func TestRegistryCredentials(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte("me:pass:word"))
	for _, x := range []struct {
		image, config     string
		user, pass, token string
	}{
		{"reg.example:5000/a/b:v1", `{"auths":{"reg.example:5000":{"auth":"` + auth + `"}}}`, "me", "pass:word", ""},
		{"reg.example/b", `{"auths":{"https://reg.example":{"identitytoken":"tok"}}}`, "", "", "tok"},
		{"library", `{"auths":{"https://index.docker.io/v1/":{"auth":"` + auth + `"}}}`, "me", "pass:word", ""},
		{"other.example/b", `{"auths":{"reg.example":{"auth":"` + auth + `"}}}`, "", "", ""},
		{"reg.example/b", `not JSON`, "", "", ""},
		{"reg.example/b", ``, "", "", ""},
	} {
		dir := t.TempDir()
		t.Setenv("DOCKER_CONFIG", dir)
		if x.config != "" {
			if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(x.config), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := newFakeEngine(t).start(t)
		f.handle("GET /images/"+x.image+"/json", noImage)
		f.handle(pullPath, reply(500, `{"message":"enough"}`))
		_, err := f.driver(t, func(c *docker.Config) { c.Image = x.image }).Create(t.Context(), testSpec)
		if err == nil || strings.Contains(err.Error(), "pass:word") || strings.Contains(err.Error(), auth) {
			t.Errorf("%s: %v", x.image, err)
		}
		header := f.last(t, pullPath).head.Get("X-Registry-Auth")
		var got struct{ Username, Password, IdentityToken string }
		if header != "" {
			plain, err := base64.URLEncoding.DecodeString(header)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(plain, &got); err != nil {
				t.Fatal(err)
			}
		}
		if got.Username != x.user || got.Password != x.pass || got.IdentityToken != x.token {
			t.Errorf("%s: sent %+v", x.image, got)
		}
		if (header == "") != (x.user+x.token == "") {
			t.Errorf("%s: header %q", x.image, header)
		}
	}
}
