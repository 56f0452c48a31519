package runnertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

func testLifecycle(t *testing.T, s *suite) {
	b := s.sandbox(t)
	if err := b.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.prints(t, `
import os, stat
print(os.getuid(), os.getgid(), os.getcwd(), os.environ['HOME'])
for d in ('uploads', 'outputs', 'skills'):
    print(d, oct(os.stat('/workspace/' + d).st_mode), os.access('/workspace/' + d, os.W_OK))
print(os.stat('/proc/1').st_uid)
`, "1000 1000 /workspace /home/sandbox\nuploads 0o40755 True\noutputs 0o40755 True\nskills 0o40755 True\n65534\n")

	t.Run("Reconnect", func(t *testing.T) {
		b.put(t, "kept", "content")
		b.reopen()
		if got := b.get(t, "kept"); got != "content" {
			t.Errorf("got %q", got)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		b.works(t) // it dials again
	})
	t.Run("CancelledDial", func(t *testing.T) {
		for i := range 5 {
			b.reopen()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Millisecond)
			if err := b.Open(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
		b.works(t)
	})
	t.Run("Gone", func(t *testing.T) {
		if err := b.driver.Destroy(t.Context(), b.id); err != nil {
			t.Fatal(err)
		}
		if _, err := b.try(t.Context(), "print(1)"); !errors.Is(err, runner.ErrNotFound) {
			t.Errorf("a run: %v", err)
		}
		if _, err := b.List(t.Context(), 1, 1); !errors.Is(err, runner.ErrNotFound) {
			t.Errorf("a listing: %v", err)
		}
		b.reopen()
		if err := b.Open(t.Context()); !errors.Is(err, runner.ErrNotFound) {
			t.Errorf("open: %v", err)
		}
		if err := b.driver.Destroy(t.Context(), b.id); err != nil {
			t.Errorf("destroyed again: %v", err)
		}
	})
	t.Run("GoneDuringRun", func(t *testing.T) {
		b := s.sandbox(t)
		if err := b.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := b.try(t.Context(), "import time; time.sleep(60)")
			ended <- err
		}()
		time.Sleep(time.Second)
		if err := b.driver.Destroy(t.Context(), b.id); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, runner.ErrNotFound) {
			t.Errorf("the run: %v", err)
		}
	})
}
