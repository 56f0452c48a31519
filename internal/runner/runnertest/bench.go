package runnertest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

// Bench runs the benchmarks.
func Bench(b *testing.B, open Open, opts Options) {
	s := newSuite(open, opts)
	b.Run("Create", s.benchCreate)
	b.Run("Dial", s.benchDial)
	b.Run("Stream", s.benchStream)
	b.Run("Exec", s.benchExec)
	b.Run("Files", s.benchFiles)
}

func (s *suite) benchCreate(b *testing.B) {
	d := s.driver(b, Config{})
	Create(b, d, s.opts.Limits) // the image is known from here on
	var removal time.Duration
	n := 0
	for b.Loop() {
		id, err := d.Create(b.Context(), Spec(s.opts.Limits))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		start := time.Now()
		if err := d.Destroy(context.Background(), id); err != nil {
			b.Fatal(err)
		}
		removal += time.Since(start)
		n++
		b.StartTimer()
	}
	report(b, removal, n, "destroy-ms")
}

// benchDial goes from no agent to one that has greeted, and then to one that
// has run its first program with all modules loaded.
func (s *suite) benchDial(b *testing.B) {
	for name, preload := range map[string][]string{"Bare": nil, "Preload": Preload} {
		b.Run(name, func(b *testing.B) {
			box := s.sandbox(b, preload...)
			var first time.Duration
			n := 0
			for b.Loop() {
				b.StopTimer()
				box.reopen()
				b.StartTimer()
				if err := box.Open(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				start := time.Now()
				box.run(b, "pass")
				first += time.Since(start)
				n++
				b.StartTimer()
			}
			report(b, first, n, "first-exec-ms")
		})
	}
}

// benchStream is what the driver's stream costs alone, and Info, which health
// asks for often.
func (s *suite) benchStream(b *testing.B) {
	d := s.driver(b, Config{})
	id, _ := Create(b, d, s.opts.Limits)
	b.Run("Info", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Info(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, c := range []struct {
		name          string
		written, read int
		command       string
	}{
		{"RoundTrip", 1, 1, "cat"},
		{"Download", 0, 1 << 20, "cat /dev/zero"},
		{"Upload", 1 << 20, 0, "sh -c cat>/dev/null"},
	} {
		b.Run(c.name, func(b *testing.B) {
			stream, err := d.Dial(b.Context(), id, strings.Fields(c.command), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer stream.Close()
			written, read := make([]byte, c.written), make([]byte, c.read)
			b.SetBytes(int64(max(c.written, c.read)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := stream.Write(written); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(stream, read); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func (s *suite) benchExec(b *testing.B) {
	box := s.sandbox(b, Preload...)
	box.run(b, plot)
	for _, c := range []struct{ name, code string }{
		{"Print", "print(2 + 2)"},
		{"Pandas", "import pandas as pd, numpy as np\ndf = pd.DataFrame({'a': np.arange(1000), 'b': np.arange(1000) % 7})\nprint(df.groupby('b').a.sum())"},
		{"Plot", plot},
		{"Artifact1MiB", "open('/workspace/outputs/x', 'wb').write(b'x' * (1 << 20))"},
	} {
		b.Run(c.name, func(b *testing.B) {
			var wall, cpu, collect time.Duration
			n := 0
			for b.Loop() {
				o := box.run(b, c.code)
				if o.ExitCode != 0 {
					b.Fatal(o.err)
				}
				wall, cpu, collect, n = wall+o.Usage.Wall, cpu+o.Usage.CPU, collect+o.Usage.Collect, n+1
				b.StopTimer()
				time.Sleep(50 * time.Millisecond) // a client thinks; the next process gets ready
				b.StartTimer()
			}
			report(b, wall, n, "run-ms")
			report(b, cpu, n, "cpu-ms")
			report(b, collect, n, "collect-ms")
		})
	}
	b.Run("BackToBack", func(b *testing.B) {
		for b.Loop() {
			box.run(b, "print(2 + 2)")
		}
	})
}

const plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]); plt.savefig('/workspace/outputs/plot.png')"

func (s *suite) benchFiles(b *testing.B) {
	box := s.sandbox(b)
	for _, c := range []struct {
		name string
		size int64
	}{{"1KiB", 1 << 10}, {"39MiB", 39 << 20}} {
		content := bytes.Repeat([]byte("x"), int(c.size))
		b.Run("Put"+c.name, func(b *testing.B) {
			b.SetBytes(c.size)
			b.ReportAllocs()
			for b.Loop() {
				if err := box.Write(b.Context(), "bench", bytes.NewReader(content), c.size); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("Get"+c.name, func(b *testing.B) {
			b.SetBytes(c.size)
			b.ReportAllocs()
			for b.Loop() {
				body, _, err := box.Read(b.Context(), "bench")
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, body); err != nil || n != c.size {
					b.Fatal(n, err)
				}
				if err := body.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("List", func(b *testing.B) {
		for b.Loop() {
			if _, err := box.List(b.Context(), 500, 6); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Pack", func(b *testing.B) {
		var sent int64
		for b.Loop() {
			sent = 0
			if _, err := box.Pack(b.Context(), counter{&sent}, 1<<30); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(sent), "archive-bytes")
	})
}

type counter struct{ n *int64 }

func (c counter) Write(p []byte) (int, error) {
	*c.n += int64(len(p))
	return len(p), nil
}

// report gives the mean of n measurements in milliseconds.
func report(b *testing.B, sum time.Duration, n int, unit string) {
	b.ReportMetric(float64(sum.Microseconds())/1e3/float64(max(n, 1)), unit)
}
