//go:build integration

package main

import (
	"cmp"
	"strings"
	"sync"
)

// tailWriter keeps the last megabyte of a log, and has it looked at.
type tailWriter struct {
	scan  *secretScan // shown, where nil
	mu    sync.Mutex
	kept  []byte
	total int
}

func (w *tailWriter) Write(p []byte) (int, error) {
	const most = 1 << 20
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total += len(p)
	if w.kept = append(w.kept, p...); len(w.kept) > most {
		w.kept = append([]byte(nil), w.kept[len(w.kept)-most/2:]...)
	}
	const longest = 512 // a secret may come in two pieces
	cmp.Or(w.scan, shown).look(inLogs, w.kept[max(len(w.kept)-len(p)-longest, 0):], len(p))
	return len(p), nil
}

func (w *tailWriter) written() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// since returns what was written after the first n bytes, its end where it is
// long, without the line that every request leaves.
func (w *tailWriter) since(n int) string {
	const most = 8 << 10
	w.mu.Lock()
	defer w.mu.Unlock()
	var text strings.Builder
	for line := range strings.Lines(string(w.kept[len(w.kept)-min(w.total-n, len(w.kept)):])) {
		if !strings.Contains(line, "msg=request ") {
			text.WriteString(line)
		}
	}
	return text.String()[max(text.Len()-most, 0):]
}
