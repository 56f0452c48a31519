//go:build integration

package s3_test

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3/s3test"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/storagetest"
)

// BenchmarkPut225MiB stores the largest document that a request carries, and
// fails where that takes 64 MiB of memory or more. Peak RSS is of this process,
// above what it was before.
func BenchmarkPut225MiB(b *testing.B) {
	const size, bound = 225 << 20, 64 << 20
	for _, name := range s3test.Names {
		b.Run(name, func(b *testing.B) {
			bucket := s3test.Start(b, name).NewBucket(b)
			driver := s3.New(options())
			defer driver.Close()
			service := storage.NewService(storage.NewOpener(map[string]storage.Driver{"s3": driver.Open}), time.Hour, time.Hour)
			put := func(size int64) {
				if _, err := service.Put(b.Context(), bucket.Config(), "document.pdf", "application/pdf", storagetest.Content(size, 1), nil); err != nil {
					b.Fatal(err)
				}
			}
			put(1) // what is needed once
			debug.FreeOSMemory()
			idle := resetPeak(b)
			b.SetBytes(size)
			var heap int64
			for b.Loop() {
				heap = max(heap, storagetest.PeakHeap(b, func() { put(size) }))
			}
			rss := memory(b, "VmHWM") - idle
			b.ReportMetric(float64(rss)/(1<<20), "peak-RSS-MiB")
			b.ReportMetric(float64(heap)/(1<<20), "peak-heap-MiB")
			if rss >= bound {
				b.Errorf("took %d MiB of memory", rss>>20)
			}
		})
	}
}

// resetPeak forgets the peak of this process's memory and returns what it has.
func resetPeak(b *testing.B) int64 {
	b.Helper()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		b.Fatal(err)
	}
	return memory(b, "VmRSS")
}

// memory reads a line of /proc/self/status, in bytes.
func memory(b *testing.B, name string) int64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			var kb int64
			if _, err := fmt.Sscanf(rest, "%d kB", &kb); err != nil {
				b.Fatal(err)
			}
			return kb << 10
		}
	}
	b.Fatalf("no %s", name)
	return 0
}
