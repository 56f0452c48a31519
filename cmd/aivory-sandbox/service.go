package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"

	"github.com/hjxwz123/aivory-sandbox/internal/api"
	"github.com/hjxwz123/aivory-sandbox/internal/config"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/session"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// service is a running instance of everything, whether serve or a test started
// it.
type service struct {
	log      *slog.Logger
	state    *stateDir
	driver   runner.Driver
	objects  *objects
	watch    *watch
	sessions *session.Manager
	server   *http.Server
	listener net.Listener
	// failed gets the error of a server that stopped by itself.
	failed chan error
}

// start makes the parts, connects them and listens. When it returns, the
// service answers on address. The caller calls stop. ctx bounds the first look
// for runners of an earlier process alone.
func start(ctx context.Context, cfg config.Config, log *slog.Logger) (_ *service, err error) {
	s := &service{log: log, failed: make(chan error, 1)}
	defer func() {
		if err != nil {
			_ = s.release()
		}
	}()
	if s.state, err = openStateDir(cfg.StateDir); err != nil {
		return nil, err
	}
	uploads, err := s.state.fresh("tmp")
	if err != nil {
		return nil, err
	}
	if s.listener, err = listen(cfg.Listen); err != nil {
		return nil, err
	}
	if s.driver, err = newDriver(cfg, log); err != nil {
		return nil, err
	}
	kept, err := openKept(cfg, s.state, log)
	if err != nil {
		return nil, err
	}
	if s.objects, err = openObjects(cfg); err != nil {
		return nil, err
	}
	if s.watch, err = openWatch(ctx, cfg, func() session.Stats { return s.sessions.Stats() }, log); err != nil {
		return nil, err
	}
	s.sessions = session.New(sessionConfig(cfg), session.Deps{
		Driver: s.driver, NewRunner: runnerMaker(s.driver, cfg, log),
		Buckets: s.objects.opener, Store: kept.records, Spool: kept.spool, Log: log,
		Observer: s.watch.observer(),
	})
	documents := storage.NewService(s.objects.opener, cfg.StorageDefaultTTL, cfg.StorageMaxTTL)
	surface := apiConfig(cfg, uploads)
	surface.Metrics, surface.Observer = s.watch.metrics.Handler(), s.watch.observer()
	handler, err := api.New(surface, s.sessions, documents, log)
	if err != nil {
		return nil, err
	}
	s.server = api.NewServer(cfg.Listen, s.watch.handler(handler), log)
	if err := s.sessions.Start(ctx); err != nil {
		return nil, fmt.Errorf("cannot take up sessions: %w", err)
	}
	go func() {
		if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("cannot accept connections: %w", err)
		}
	}()
	log.Info("serving", "address", s.address(), "version", versionText(), "driver", cfg.Driver, "image", cfg.Image, "instance", cfg.Instance, "state", cfg.StateDir)
	return s, nil
}

// address is where the service listens.
func (s *service) address() string { return s.listener.Addr().String() }

// stop accepts no more requests, lets work in hand finish until ctx ends, and
// then ends it. Runners live on for the next process.
func (s *service) stop(ctx context.Context) error {
	idle := make(chan error, 1)
	go func() { idle <- s.server.Shutdown(ctx) }()
	// Ends the requests that wait for a turn too, or the server would never be idle.
	err := s.sessions.Shutdown(ctx)
	if shutErr := <-idle; shutErr != nil {
		// Their work has ended or was ended; what remains is slow clients.
		err = errors.Join(err, s.server.Close())
	}
	return errors.Join(err, s.release())
}

// release lets go of everything that was made, however far start had come.
func (s *service) release() error {
	var err error
	if s.listener != nil {
		if closeErr := s.listener.Close(); !errors.Is(closeErr, net.ErrClosed) {
			err = closeErr
		}
	}
	if s.watch != nil {
		err = errors.Join(err, s.watch.Close())
	}
	if s.driver != nil {
		err = errors.Join(err, s.driver.Close())
	}
	if s.objects != nil {
		err = errors.Join(err, s.objects.Close())
	}
	if s.state != nil {
		err = errors.Join(err, s.state.Close())
	}
	return err
}

func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("another program listens on %s already: stop it, or set SANDBOX_LISTEN to another address", address)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on SANDBOX_LISTEN: %w", err)
	}
	return l, nil
}

// runnerMaker returns what turns a driver's handle into a runner.
func runnerMaker(driver runner.Driver, cfg config.Config, log *slog.Logger) func(handle string) session.Runner {
	options := runner.Options{
		Preload: cfg.Preload,
		CPUs:    float64(cfg.NanoCPUs) / 1e9,
		// Starting an agent is a few control calls and a Python.
		DialTimeout: cfg.DockerCallTimeout,
		Logf:        func(format string, args ...any) { log.Warn(fmt.Sprintf(format, args...)) },
	}
	return func(handle string) session.Runner { return runner.New(driver, handle, options) }
}

func sessionConfig(cfg config.Config) session.Config {
	return session.Config{
		MaxSessions:    cfg.MaxSessions,
		MaxExecs:       cfg.MaxConcurrentExecs,
		MaxCreates:     cfg.MaxConcurrentCreates,
		PoolSize:       cfg.PoolSize,
		QueueTimeout:   cfg.QueueTimeout,
		IdleTTL:        cfg.IdleTTL,
		IdleTTLCap:     cfg.IdleTTLCap,
		SweepInterval:  cfg.SweepInterval,
		MaxOutputBytes: cfg.MaxOutputBytes,
		Artifacts: runner.ArtifactLimits{
			MaxFiles:      cfg.MaxFilesPerExec,
			MaxFileBytes:  cfg.MaxArtifactBytes,
			MaxTotalBytes: cfg.MaxTotalArtifactBytes,
			MaxDuration:   cfg.MaxCollect,
			FileTimeout:   cfg.CollectFileTimeout,
		},
		Limits: runner.Limits{
			MemoryBytes:    cfg.Memory,
			NanoCPUs:       cfg.NanoCPUs,
			PidsLimit:      cfg.PidsLimit,
			NofileSoft:     cfg.NofileSoft,
			NofileHard:     cfg.NofileHard,
			ReadOnlyRootfs: cfg.ReadOnlyRootfs,
			TmpfsBytes:     cfg.TmpfsSize,
			WorkspaceBytes: cfg.WorkspaceSize,
			DiskSize:       cfg.DiskSize,
		},
		MaxArchiveBytes: cfg.MaxArchiveBytes,
		ArchiveTimeout:  cfg.ArchiveTimeout,
	}
}

func apiConfig(cfg config.Config, uploads string) api.Config {
	c := api.Config{
		NoAuth:           cfg.APIKey == "",
		MaxBody:          cfg.MaxBodyBytes,
		MaxStorageBody:   cfg.MaxStorageBodyBytes,
		MaxCode:          int64(cfg.MaxCodeBytes),
		MaxUpload:        cfg.MaxUploadBytes,
		MaxOutput:        cfg.MaxOutputBytes,
		ExecTimeout:      cfg.DefaultExecTimeout,
		ExecTimeoutCap:   cfg.ExecTimeoutCap,
		MaxArtifacts:     cfg.MaxFilesPerExec,
		MaxArtifactBytes: cfg.MaxArtifactBytes,
		MaxArtifactTotal: cfg.MaxTotalArtifactBytes,
		TempDir:          uploads,
		MaxTemp:          maxTemp,
		Docs:             cfg.Docs,
		MetricsKey:       cfg.MetricsKey,
	}
	if !c.NoAuth {
		c.Keys = []string{cfg.APIKey}
	}
	return c
}

// maxTemp bounds uploads on disk, all together: several of the largest.
const maxTemp = 4 << 30
