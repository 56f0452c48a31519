package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
)

// newLogger returns a logger with the configured level and format. Where no
// format is configured, a terminal gets text and anything else JSON.
func newLogger(cfg config.Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		panic("config accepted a log level that does not exist: " + cfg.LogLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "text" || cfg.LogFormat == "" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	// Durations as in the text format; by themselves they would be nanoseconds.
	options.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
