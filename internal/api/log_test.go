package api

import (
	"context"
	"log/slog"
	"strings"
	"testing"
)

func TestLogHandler(t *testing.T) {
	var out logBuffer
	log := slog.New(NewLogHandler(NewLogHandler(slog.NewTextHandler(&out, nil))))
	ctx := context.WithValue(context.Background(), requestIDKey{}, "0123456789abcdef")
	log.With("a", 1).InfoContext(ctx, "with")
	log.WithGroup("g").InfoContext(ctx, "grouped")
	log.InfoContext(context.Background(), "outside")
	log.Info("alone")
	for word, want := range map[string]int{"with": 1, "grouped": 1, "outside": 0, "alone": 0} {
		lines := out.lines("msg=" + word)
		if len(lines) != 1 || strings.Count(lines[0], "request_id=0123456789abcdef") != want {
			t.Errorf("%s: %q", word, lines)
		}
	}
}
