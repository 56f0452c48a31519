//go:build integration

package main

import (
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// weather makes a store fail for a while, now and then.
type weather struct {
	change    func(rate float64) // how much of what is asked of the store fails
	readsFail bool

	mu     sync.Mutex
	bad    bool
	epochs int // how often it changed
}

func (w *weather) set(rate float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.change(rate)
	w.bad = rate > 0
	w.epochs++
}

// watch begins to watch; what it returns tells whether all reads were served
// since.
func (w *weather) watch() (clear func() bool) {
	w.mu.Lock()
	bad, epochs := w.bad, w.epochs
	w.mu.Unlock()
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return !w.readsFail || !bad && epochs == w.epochs
	}
}

// blow changes the weather at random until stop is closed, and leaves it fair.
func (w *weather) blow(rng *rand.Rand, stop <-chan struct{}) {
	defer w.set(0)
	for {
		fair := time.Duration(500+rng.IntN(4000)) * time.Millisecond
		foul := time.Duration(200+rng.IntN(3000)) * time.Millisecond
		for _, spell := range []struct {
			rate  float64
			lasts time.Duration
		}{{0, fair}, {[]float64{0.3, 0.6, 1}[rng.IntN(3)], foul}} {
			w.set(spell.rate)
			select {
			case <-stop:
				return
			case <-time.After(spell.lasts):
			}
		}
	}
}

// smallDisk mounts a file system on dir whose weather is that it is full.
func smallDisk(t *testing.T, dir string) *weather {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "size=96m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	return &weather{change: func(rate float64) {
		if rate == 0 {
			if err := os.Remove(ballast); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
			return
		}
		f, err := os.Create(ballast)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := io.Copy(f, zeros{}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("the disk does not fill: %v", err)
		}
		_ = f.Close() // full
	}}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// flaky passes requests on to a server, or fails them in all the ways in which a
// network and a server do.
type flaky struct {
	proxy httputil.ReverseProxy

	mu   sync.Mutex
	rng  *rand.Rand
	rate float64
}

// newFlaky returns the URL of a proxy before the server at target, and its
// weather.
func newFlaky(t *testing.T, target string, rng *rand.Rand) (string, *weather) {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{rng: rng}
	f.proxy = httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it is signed
		},
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	server := httptest.NewUnstartedServer(f)
	server.Config.ErrorLog = f.proxy.ErrorLog
	server.Start()
	t.Cleanup(server.Close)
	return server.URL, &weather{readsFail: true, change: func(rate float64) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rate = rate
	}}
}

// fate draws what becomes of a request: a way to fail, or below zero none.
func (f *flaky) fate() (way int, after int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rng.Float64() >= f.rate {
		return -1, 0
	}
	return f.rng.IntN(5), f.rng.Int64N(1 << uint(f.rng.IntN(23)))
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	way, after := f.fate()
	switch way {
	case -1:
		f.proxy.ServeHTTP(w, r)
		return
	case 0:
		http.Error(w, "slow down", http.StatusServiceUnavailable)
		return
	case 1: // the request never arrives
	case 2: // it does, in part
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(r.Body, after), r.Body}
		f.proxy.ServeHTTP(httptest.NewRecorder(), r)
	case 3: // the answer gets lost
		f.proxy.ServeHTTP(httptest.NewRecorder(), r)
	case 4: // the answer arrives in part
		f.proxy.ServeHTTP(&cutShort{w, after}, r)
	}
	panic(http.ErrAbortHandler)
}

// cutShort breaks the connection after so many bytes of an answer.
type cutShort struct {
	http.ResponseWriter
	left int64
}

func (c *cutShort) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(int64(len(p)), c.left)])
	if c.left -= int64(n); c.left == 0 && err == nil {
		panic(http.ErrAbortHandler)
	}
	return n, err
}
