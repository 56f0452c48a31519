// Package docker is the runner driver over the Docker Engine API.
//
// It speaks HTTP to the engine that DOCKER_HOST names and needs no docker
// command. Which calls it makes, and nothing beyond them, stands in
// docs/docker.md, so that a socket proxy can be told to allow just those.
package docker

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// Config is what New needs. The engine's address and TLS come from DOCKER_HOST,
// DOCKER_TLS_VERIFY, DOCKER_CERT_PATH and DOCKER_API_VERSION, as for any Docker
// client.
type Config struct {
	// Host is used in place of DOCKER_HOST where it is not empty.
	Host string
	// Image is the runner image's reference. It must be set.
	Image string
	// Runtime is an OCI runtime that the engine knows by this name; empty is
	// the engine's default.
	Runtime string
	// Instance labels the runners of this service; empty is "default".
	Instance string
	// SeccompProfile is a profile in Docker's JSON format; empty is Docker's
	// default profile of the day this program was built, not the engine's own.
	SeccompProfile []byte
	// ProfileFile is where the profile is written for Podman, which takes it from a
	// file of its host; empty is for no Podman. Nothing else uses it.
	ProfileFile string
	// CallTimeout bounds each control call, 30 s where it is zero.
	CallTimeout time.Duration
	// PullTimeout bounds pulling the image, 20 min where it is zero.
	PullTimeout time.Duration
	// Logger gets what an operator should know; nil discards it.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Instance == "" {
		c.Instance = "default"
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = 30 * time.Second
	}
	if c.PullTimeout == 0 {
		c.PullTimeout = 20 * time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Driver is a runner.Driver. Make it with New, and call Close when done.
type Driver struct {
	cfg     Config
	log     *slog.Logger
	seccomp profile
	engine  *engine
	image   imageState
	streams streams

	quotaRefused atomic.Bool // the storage driver knows no size; do not ask again

	podmanAsked atomic.Bool // whether it runs without root

	noted sync.Map     // engine warnings that were logged
	notes atomic.Int32 // how many

	life context.Context // ends with Close
	stop context.CancelFunc
	jobs sync.WaitGroup // pulls
}

var _ runner.Driver = (*Driver)(nil)

// New returns a driver. It does not call the engine, which may be down: each
// call finds out anew. An ssh:// address, an unreadable certificate and a
// profile that is not JSON are errors.
func New(cfg Config) (*Driver, error) {
	cfg = cfg.withDefaults()
	if cfg.Image == "" {
		return nil, errors.New("cannot set up the docker driver: no runner image is named")
	}
	text, err := seccompProfile(cfg.SeccompProfile)
	if err != nil {
		return nil, err
	}
	eng, err := newEngine(cfg.Host, cfg.CallTimeout)
	if err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, log: cfg.Logger, seccomp: profile{text: text, file: cfg.ProfileFile}, engine: eng}
	if len(cfg.SeccompProfile) > 0 && runner.GVisor(cfg.Runtime) {
		d.log.Warn("gVisor does not apply SANDBOX_SECCOMP_PROFILE to programs; its own kernel and the agent's filter are what holds them")
	}
	d.life, d.stop = context.WithCancel(context.Background())
	return d, nil
}

// Info implements runner.Driver. It asks for no more than a ping: the full
// version costs the engine three processes, and health is asked often.
func (d *Driver) Info(ctx context.Context) (runner.Info, error) {
	info := runner.Info{
		Driver:     "docker",
		Runtime:    d.cfg.Runtime,
		Image:      d.cfg.Image,
		ImageReady: d.image.ready(),
	}
	version, err := call(ctx, d.engine, "ping the engine", func(ctx context.Context, c *client.Client) (string, error) {
		ping, err := c.Ping(ctx, client.PingOptions{})
		return engineVersion(answerTo(ctx).server, ping.APIVersion), err
	})
	if err != nil {
		var cause *engineError
		if errors.As(err, &cause) {
			err = fault.Wrap(fault.Unavailable, detailUnreachable, cause)
		}
		return info, err
	}
	info.Version = version
	return info, nil
}

// engineVersion reads the version from a Server header such as
// "Docker/28.2.2 (linux)". A proxy may hide it; the API's version is then told.
func engineVersion(server, api string) string {
	name, rest, found := strings.Cut(server, "/")
	if version, _, _ := strings.Cut(rest, " "); found && version != "" && (name == "Docker" || name == "Libpod") {
		return version
	}
	if api == "" {
		return "unknown"
	}
	return "API " + api
}

// Close implements runner.Driver. It ends a pull under way. Streams that were
// dialled stay open.
func (d *Driver) Close() error {
	d.stop()
	d.jobs.Wait()
	return d.engine.close()
}

// noteWarnings logs what the engine said of a container, each sentence once,
// for every container gets the same ones.
func (d *Driver) noteWarnings(warnings []string) {
	const most = 32
	for _, w := range warnings {
		if d.notes.Load() >= most {
			return
		}
		if _, seen := d.noted.LoadOrStore(w, nil); !seen {
			d.notes.Add(1)
			d.log.Warn("engine warning", "warning", w)
		}
	}
}
