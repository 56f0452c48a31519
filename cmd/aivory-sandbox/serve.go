package main

import (
	"context"
	"fmt"
	"io"
	"os"
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

	ctx, release := untilSignal(ctx)
	defer release()
	s, err := start(ctx, cfg, log)
	if err != nil {
		return fmt.Errorf("cannot start: %w", err)
	}
	select {
	case err = <-s.failed:
		log.Error("cannot go on serving", "err", err)
	case <-ctx.Done():
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

// untilSignal returns a context that ends with the first SIGTERM or SIGINT. The
// second one ends the process. That is not left to the kernel: a shell that starts a
// service with & in a script has it ignore SIGINT, and so it would be again.
func untilSignal(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals, over, ended := make(chan os.Signal, 2), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		defer close(ended)
		for first := true; ; first = false {
			select {
			case <-over:
				return
			case sig := <-signals:
				if !first {
					os.Exit(128 + int(sig.(syscall.Signal))) // what a shell says of one that it ended
				}
				cancel()
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(over)
		<-ended
		cancel()
	}
}

// drainTime is enough for the longest run and its artifacts, within maxDrain.
func drainTime(cfg config.Config) time.Duration {
	return min(cfg.ExecTimeoutCap+10*time.Second, maxDrain)
}
