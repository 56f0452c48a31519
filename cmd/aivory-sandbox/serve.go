package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
)

// maxDrain bounds how long a stopping service waits for work in hand, whatever
// the longest run may be.
const maxDrain = 2 * time.Minute

// serve serves until ctx ends or a signal comes. It writes its log to stderr.
func serve(ctx context.Context, environ []string, stderr io.Writer) error {
	cfg, warnings, err := config.Load(environ)
	if err != nil {
		return err
	}
	log := newLogger(cfg, stderr)
	for _, w := range warnings {
		log.Warn(w)
	}

	ctx, release := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer release()
	s, err := start(ctx, cfg, log)
	if err != nil {
		return fmt.Errorf("cannot start: %w", err)
	}
	select {
	case err = <-s.failed:
		log.Error("cannot go on serving", "err", err)
	case <-ctx.Done():
		// The kernel's own way from here on: the next signal ends the process.
		release()
		log.Info("stopping: work in hand is finished, runners stay", "at most", drainTime(cfg))
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime(cfg))
	defer cancel()
	if stopErr := s.stop(drain); stopErr != nil && err == nil {
		err = fmt.Errorf("cannot stop cleanly: %w", stopErr)
	}
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// drainTime is enough for the longest run and its artifacts, within maxDrain.
func drainTime(cfg config.Config) time.Duration {
	return min(cfg.ExecTimeoutCap+10*time.Second, maxDrain)
}
