package docker_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/docker"
)

func TestNewRefuses(t *testing.T) {
	for _, x := range []struct {
		name string
		cfg  docker.Config
		env  map[string]string
		want string
	}{
		{"ssh", docker.Config{Image: "i", Host: "ssh://me@host"}, nil, "DOCKER_HOST=unix:///run/remote-docker.sock"},
		{"ssh from environment", docker.Config{Image: "i"}, map[string]string{"DOCKER_HOST": "ssh://host"}, "ssh:// is not supported"},
		{"no scheme", docker.Config{Image: "i", Host: "localhost"}, nil, `DOCKER_HOST "localhost"`},
		{"no image", docker.Config{}, nil, "no runner image"},
		{"profile", docker.Config{Image: "i", SeccompProfile: []byte("{")}, nil, "seccomp profile"},
		{"profile of another type", docker.Config{Image: "i", SeccompProfile: []byte("[1]")}, nil, "seccomp profile"},
		{
			"TLS without certificates", docker.Config{Image: "i", Host: "tcp://127.0.0.1:9"},
			map[string]string{"DOCKER_TLS_VERIFY": "1", "DOCKER_CONFIG": "/nonexistent"}, "ca.pem",
		},
		{
			"API version", docker.Config{Image: "i", Host: "tcp://127.0.0.1:9"},
			map[string]string{"DOCKER_API_VERSION": "latest"}, "API version",
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			for k, v := range x.env {
				t.Setenv(k, v)
			}
			if _, err := docker.New(x.cfg); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("got %v, want %q in it", err, x.want)
			}
		})
	}
}

// TestEngineDownAndBack: an engine that is down is neither a lost runner nor a
// reason not to start, and is used as soon as it is back.
func TestEngineDownAndBack(t *testing.T) {
	f := newFakeEngine(t)
	t.Setenv("DOCKER_TLS_VERIFY", "1") // means nothing to a unix socket
	d := f.driver(t, nil)

	info, err := d.Info(t.Context())
	if !fault.Is(err, fault.Unavailable) || info.Image != "img:v1" || info.Driver != "docker" || info.Version != "" {
		t.Errorf("info %+v, %v", info, err)
	}
	_, createErr := d.Create(t.Context(), testSpec)
	_, dialErr := d.Dial(t.Context(), fakeName, []string{"true"}, nil)
	_, listErr := d.List(t.Context())
	for name, err := range map[string]error{
		"create": createErr, "dial": dialErr, "list": listErr, "destroy": d.Destroy(t.Context(), fakeName),
	} {
		var e *fault.Error
		if !errors.As(err, &e) || e.Kind != fault.Internal || e.Detail == "" || errors.Is(err, runner.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(e.Detail, f.socket) {
			t.Errorf("%s: a client reads %q", name, e.Detail)
		}
	}

	f.start(t)
	if info, err = d.Info(t.Context()); err != nil || info.Version != "20.10.24+dfsg1" || info.ImageReady {
		t.Errorf("info %+v, %v", info, err)
	}
	if id, err := d.Create(t.Context(), testSpec); err != nil || id != fakeName {
		t.Errorf("create: %q, %v", id, err)
	}
	if info, err = d.Info(t.Context()); err != nil || !info.ImageReady {
		t.Errorf("info %+v, %v", info, err)
	}
}

func TestVersionBehindProxy(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("HEAD /_ping", reply(403, ""))
	for server, want := range map[string]string{
		"Docker/28.2.2 (linux)": "28.2.2", "Libpod/4.3.1 (linux)": "4.3.1", "nginx/1.22": "API 1.41", "": "API 1.41", "Docker/": "API 1.41",
	} {
		f.handle("GET /_ping", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			w.Header().Set("Server", server)
		})
		if info, err := f.driver(t, nil).Info(t.Context()); err != nil || info.Version != want {
			t.Errorf("server %q: version %q, %v, want %q", server, info.Version, err, want)
		}
	}
}

func TestVersionIsAgreedOn(t *testing.T) {
	f := newFakeEngine(t).start(t)
	f.handle("GET /containers/json", reply(200, "[]"))
	list := func(d *docker.Driver) (string, error) {
		_, err := d.List(t.Context())
		if err != nil {
			return "", err
		}
		return f.last(t, "GET /containers/json").api, nil
	}
	d := f.driver(t, nil)
	if v, err := list(d); err != nil || v != "v1.41" {
		t.Errorf("an engine of API 1.41 was asked with %q, %v", v, err)
	}

	// The engine is replaced by one that does not know 1.41 any more.
	f.mu.Lock()
	f.version = "1.50"
	f.mu.Unlock()
	f.handle("GET /containers/json", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1.41/") {
			reply(400, `{"message":"client version 1.41 is too old. Minimum supported API version is 1.44"}`)(w, r)
			return
		}
		reply(200, "[]")(w, r)
	})
	if v, err := list(d); err != nil || v != "v1.50" {
		t.Errorf("the new engine was asked with %q, %v", v, err)
	}

	f.mu.Lock()
	f.version = "1.24"
	f.mu.Unlock()
	if _, err := list(f.driver(t, nil)); err == nil || !strings.Contains(err.Error(), "API version 1.24") {
		t.Errorf("an engine that is too old: %v", err)
	}

	t.Setenv("DOCKER_API_VERSION", "1.42")
	pings := f.count("HEAD /_ping")
	if v, err := list(f.driver(t, nil)); err != nil || v != "v1.42" {
		t.Errorf("with DOCKER_API_VERSION: %q, %v", v, err)
	}
	if n := f.count("HEAD /_ping"); n != pings {
		t.Errorf("%d pings with DOCKER_API_VERSION", n-pings)
	}
}

func TestEngineHangs(t *testing.T) {
	f := newFakeEngine(t).start(t)
	d := f.driver(t, func(c *docker.Config) { c.CallTimeout = 100 * time.Millisecond })
	wantTimeout := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "no answer within 100ms") ||
			errors.Is(err, context.DeadlineExceeded) || errors.Is(err, runner.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}

	f.handle("GET /containers/json", hang)
	_, err := d.List(t.Context())
	wantTimeout("list", err)
	f.handle("POST /containers/NAME/exec", hang)
	_, err = d.Dial(t.Context(), fakeName, []string{"true"}, nil)
	wantTimeout("exec", err)
	f.handle("POST /containers/NAME/exec", reply(201, `{"Id":"e1"}`))
	f.handle("POST /exec/e1/start", hang)
	_, err = d.Dial(t.Context(), fakeName, []string{"true"}, nil)
	wantTimeout("exec start", err)

	// Many callers of an engine that hangs from the start wait side by side.
	f.handle("HEAD /_ping", hang)
	d = f.driver(t, func(c *docker.Config) { c.CallTimeout = 100 * time.Millisecond })
	start := time.Now()
	errs := make(chan error)
	for range 40 {
		go func() { _, err := d.List(context.Background()); errs <- err }()
	}
	for range 40 {
		wantTimeout("list", <-errs)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("40 callers took %v, one after the other it seems", took)
	}
}

func TestCallerGoesAway(t *testing.T) {
	f := newFakeEngine(t).start(t)
	d := f.driver(t, nil)
	f.handle("GET /containers/json", hang)
	reason := errors.New("client hung up")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(reason) })
	if _, err := d.List(ctx); !errors.Is(err, reason) {
		t.Errorf("got %v, want the cause", err)
	}
}

// TestTLS goes through tcp:// with certificates on both sides, a command's
// connection included.
func TestTLS(t *testing.T) {
	f := newFakeEngine(t)
	f.handle("POST /exec/e1/start", hijack(func(c net.Conn) { _, _ = c.Write(chunk(1, "hello")) }))
	dir := t.TempDir()
	clients := writeCertificate(t, dir, "cert.pem", "key.pem")
	s := httptest.NewUnstartedServer(f)
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are meant to fail
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	host := "tcp://" + s.Listener.Addr().String()

	for name, env := range map[string]map[string]string{
		"path named":         {"DOCKER_HOST": host, "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": dir},
		"docker's directory": {"DOCKER_HOST": host, "DOCKER_TLS_VERIFY": "1", "DOCKER_CONFIG": dir},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range env {
				t.Setenv(k, v)
			}
			d, err := docker.New(docker.Config{Image: "img:v1"})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if _, err := d.Info(t.Context()); err != nil {
				t.Fatal(err)
			}
			stream, err := d.Dial(t.Context(), fakeName, []string{"x"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			if b, err := io.ReadAll(stream); err != nil || string(b) != "hello" {
				t.Errorf("read %q, %v", b, err)
			}
		})
	}

	t.Run("unknown authority", func(t *testing.T) {
		other := t.TempDir()
		writeCertificate(t, other, "cert.pem", "key.pem")
		writeCertificate(t, other, "ca.pem", "ca-key.pem")
		t.Setenv("DOCKER_HOST", host)
		t.Setenv("DOCKER_TLS_VERIFY", "1")
		t.Setenv("DOCKER_CERT_PATH", other)
		d, err := docker.New(docker.Config{Image: "img:v1"})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if _, err := d.Info(t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("got %v", err)
		}
	})
}

// writeCertificate writes a self-signed certificate with its key and returns
// the pool that trusts it.
func writeCertificate(t *testing.T, dir, certName, keyName string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		certName: {Type: "CERTIFICATE", Bytes: der}, keyName: {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}
