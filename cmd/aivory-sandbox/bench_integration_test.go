//go:build integration

package main

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkService times the service as a client sees it, over HTTP, on a real
// runner. Runs follow each other without a pause, so that each waits for the
// child that is forked after the one before; a pause hides that.
func BenchmarkService(b *testing.B) {
	s, err := launch(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.halt(); err != nil {
			b.Error(err)
		}
		if _, err := s.removeContainers(); err != nil {
			b.Error(err)
		}
	})
	open := func(b *testing.B) testSession {
		b.Helper()
		id, err := s.create()
		if err != nil {
			b.Fatal(err)
		}
		return testSession{s, id}
	}
	b.Run("create and delete", func(b *testing.B) {
		for b.Loop() {
			if a := s.release(open(b).id); a.status != 200 {
				b.Fatal(a)
			}
		}
	})
	session := open(b)
	// The first run waits for the modules.
	if _, err := parseResult(session.exec(b.Context(), "import pandas", time.Minute)); err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct{ name, code, out string }{
		{"exec print", "print(2+2)", "4\n"},
		{"exec pandas", "import pandas as pd; print(pd.DataFrame({'a':[1,2]}).sum().a)", "3\n"},
		{"exec chart", "import matplotlib.pyplot as plt; plt.plot([1,2,3]); plt.savefig('/workspace/outputs/p.png'); print('rows', 3)", "rows 3\n"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				r, err := parseResult(session.exec(b.Context(), bench.code, time.Minute))
				if err != nil || r.Stdout != bench.out {
					b.Fatal(err, r)
				}
			}
		})
	}
	for _, size := range []int{100, 39 << 20} {
		data := bytes.Repeat([]byte("0123456789"), size/10)
		name := map[bool]string{true: "small", false: "39 MiB"}[size == 100]
		b.Run("put "+name, func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				if a := session.put("file.bin", data); a.status != 200 {
					b.Fatal(a)
				}
			}
		})
		b.Run("get "+name, func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				if a := session.get("file.bin"); a.status != 200 {
					b.Fatal(a)
				}
			}
		})
	}
	b.Run("load", func(b *testing.B) {
		const clients = 8
		sessions := make([]testSession, clients/2)
		for i := range sessions {
			sessions[i] = open(b)
			if _, err := parseResult(sessions[i].exec(b.Context(), "import pandas", time.Minute)); err != nil {
				b.Fatal(err)
			}
		}
		var next atomic.Int64
		b.SetParallelism(clients) // times GOMAXPROCS goroutines; more than needed wait
		slots := make(chan struct{}, clients)
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			s := sessions[int(next.Add(1))%len(sessions)]
			for pb.Next() {
				slots <- struct{}{}
				r, err := parseResult(s.exec(b.Context(), "print(1)", time.Minute))
				<-slots
				if err != nil || r.Stdout != "1\n" {
					b.Error(err, r)
					return
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	})
}
