//go:build integration

package docker_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

func BenchmarkCreate(b *testing.B) {
	d := newDriver(b, nil)
	create(b, d, testLimits)
	for b.Loop() {
		id, err := d.Create(b.Context(), runner.Spec{SessionID: randomHex(16), CreatedAt: time.Now(), Limits: testLimits})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := d.Destroy(context.Background(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkDestroy(b *testing.B) {
	d := newDriver(b, nil)
	for b.Loop() {
		b.StopTimer()
		id, err := d.Create(b.Context(), runner.Spec{SessionID: randomHex(16), CreatedAt: time.Now(), Limits: testLimits})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := d.Destroy(context.Background(), id); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDial goes from the call to the command's first byte.
func BenchmarkDial(b *testing.B) {
	d := newDriver(b, nil)
	id, _ := create(b, d, testLimits)
	for b.Loop() {
		s, err := d.Dial(b.Context(), id, []string{"cat"}, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Write([]byte("x")); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		_ = s.Close()
	}
}

// BenchmarkRoundTrip is a byte to the command and back, over an open stream.
func BenchmarkRoundTrip(b *testing.B) {
	d := newDriver(b, nil)
	id, _ := create(b, d, testLimits)
	s, err := d.Dial(b.Context(), id, []string{"cat"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	p := make([]byte, 1)
	for b.Loop() {
		if _, err := s.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(s, p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDownload reads a command's output.
func BenchmarkDownload(b *testing.B) {
	d := newDriver(b, nil)
	id, _ := create(b, d, testLimits)
	s, err := d.Dial(b.Context(), id, []string{"cat", "/dev/zero"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	p := make([]byte, 1<<20)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := io.ReadFull(s, p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUpload writes to a command that throws it away.
func BenchmarkUpload(b *testing.B) {
	d := newDriver(b, nil)
	id, _ := create(b, d, testLimits)
	s, err := d.Dial(b.Context(), id, []string{"sh", "-c", "cat >/dev/null"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	p := make([]byte, 1<<20)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if _, err := s.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInfo(b *testing.B) {
	d := newDriver(b, nil)
	for b.Loop() {
		if _, err := d.Info(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
