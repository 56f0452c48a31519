package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// detailUnreachable is what a client of the service reads of an engine that
// does not answer.
const detailUnreachable = "the container engine cannot be reached"

// engine is the connection to the Docker Engine. The API version is agreed on
// at the first call that gets through, and again when the engine refuses it
// because it was replaced by another one meanwhile.
type engine struct {
	opts    []client.Opt
	timeout time.Duration
	// probe only pings, which works with any version. The client's own
	// negotiation is not used: it waits for a hanging engine under a lock.
	probe  *client.Client
	pinned bool                          // DOCKER_API_VERSION is set
	agreed atomic.Pointer[client.Client] // speaks the agreed version; nil before
	podman atomic.Bool                   // the engine says that it is Podman
}

// newEngine returns a connection to host or, where that is empty, to what the
// environment names.
func newEngine(host string, timeout time.Duration) (*engine, error) {
	if host == "" {
		host = os.Getenv(client.EnvOverrideHost)
	}
	if host == "" {
		host = client.DefaultDockerHost
	}
	if strings.HasPrefix(host, "ssh://") {
		return nil, errors.New("cannot use DOCKER_HOST: ssh:// is not supported; forward the socket with " +
			"ssh -L /run/remote-docker.sock:/var/run/docker.sock user@host and set DOCKER_HOST=unix:///run/remote-docker.sock, " +
			"or use tcp:// with TLS")
	}
	opts, err := tlsOptions(host)
	if err != nil {
		return nil, err
	}
	e := &engine{
		timeout: timeout,
		pinned:  strings.TrimSpace(os.Getenv(client.EnvOverrideAPIVersion)) != "",
	}
	e.opts = append(opts,
		client.WithHost(host),
		client.WithAPIVersionFromEnv(),
		client.WithUserAgent("aivory-sandbox"),
		client.WithHTTPResponseHook(e.note))
	if e.probe, err = client.New(e.opts...); err != nil {
		return nil, fmt.Errorf("cannot use DOCKER_HOST %q: %w", host, err)
	}
	return e, nil
}

// tlsOptions reads DOCKER_TLS_VERIFY and DOCKER_CERT_PATH as the docker command
// does: verification without a path takes the certificates in its own
// directory. A unix socket has no use for either.
func tlsOptions(host string) ([]client.Opt, error) {
	if strings.HasPrefix(host, "unix://") {
		return nil, nil
	}
	if os.Getenv(client.EnvOverrideCertPath) != "" {
		return []client.Opt{client.WithTLSClientConfigFromEnv()}, nil
	}
	if os.Getenv(client.EnvTLSVerify) == "" {
		return nil, nil
	}
	dir, err := configDir()
	if err != nil {
		return nil, fmt.Errorf("cannot find certificates for DOCKER_TLS_VERIFY, and DOCKER_CERT_PATH is not set: %w", err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	return []client.Opt{client.WithTLSClientConfig(file("ca.pem"), file("cert.pem"), file("key.pem"))}, nil
}

// configDir is where the docker command keeps its configuration.
func configDir() (string, error) {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".docker"), nil
}

// client returns a client that speaks the agreed API version.
func (e *engine) client(ctx context.Context) (*client.Client, error) {
	if e.pinned {
		return e.probe, nil
	}
	if c := e.agreed.Load(); c != nil {
		return c, nil
	}
	ping, err := e.probe.Ping(ctx, client.PingOptions{})
	if err != nil {
		return nil, err
	}
	version := client.MaxAPIVersion
	if v := ping.APIVersion; v != "" && versions.LessThan(v, version) {
		version = v
	}
	if versions.LessThan(version, client.MinAPIVersion) {
		return nil, fmt.Errorf("the engine speaks API version %s, at least %s (Docker 19.03) is needed", version, client.MinAPIVersion)
	}
	c, err := client.New(append(slices.Clip(e.opts), client.WithAPIVersion(version))...)
	if err != nil {
		return nil, err
	}
	if !e.agreed.CompareAndSwap(nil, c) {
		if other := e.agreed.Load(); other != nil {
			return other, nil
		}
	}
	return c, nil
}

// forget makes the next call agree on a version again.
func (e *engine) forget(c *client.Client) {
	if e.agreed.CompareAndSwap(c, nil) {
		_ = c.Close()
	}
}

func (e *engine) close() error {
	if c := e.agreed.Load(); c != nil {
		_ = c.Close()
	}
	return e.probe.Close()
}

// call makes one control call within the engine's timeout. Its error reads
// "cannot <doing>: …" and holds an *engineError, unless the caller's context
// ended: then it holds the context's cause. An engine that does not answer is
// fault.Internal with a sentence of its own.
func call[T any](ctx context.Context, e *engine, doing string, f func(context.Context, *client.Client) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	for again := true; ; again = false {
		var a answer
		var v T
		c, err := e.client(limited)
		if err == nil {
			v, err = f(context.WithValue(limited, answerKey{}, &a), c)
		}
		switch {
		case err == nil:
			return v, nil
		case ctx.Err() != nil:
			return v, fmt.Errorf("cannot %s: %w", doing, context.Cause(ctx))
		case again && a.status == http.StatusBadRequest && strings.Contains(err.Error(), "client version"):
			// Refused before anything was done, for the engine is another now.
			e.forget(c)
			continue
		case limited.Err() != nil:
			// Not the context's own error: nobody upstream set this deadline.
			err = fmt.Errorf("no answer within %v", e.timeout)
		}
		err = &engineError{doing: doing, status: a.status, err: err}
		if a.status == 0 {
			err = fault.Wrap(fault.Internal, detailUnreachable, err)
		}
		return v, err
	}
}

// do is call for calls without a result.
func do(ctx context.Context, e *engine, doing string, f func(context.Context, *client.Client) error) error {
	_, err := call(ctx, e, doing, func(ctx context.Context, c *client.Client) (struct{}, error) {
		return struct{}{}, f(ctx, c)
	})
	return err
}

// answer is what the engine's answer to a call says outside of its body.
type answer struct {
	status int // 0 where there was none
	server string
}

type answerKey struct{}

// answerTo returns the latest answer under a context that call made.
func answerTo(ctx context.Context) *answer { return ctx.Value(answerKey{}).(*answer) }

// note is a hook of the client. It runs in the goroutine of the call.
func (e *engine) note(resp *http.Response) {
	if server := resp.Header.Get("Server"); server != "" {
		e.podman.Store(strings.HasPrefix(server, "Libpod/"))
	}
	if a, ok := resp.Request.Context().Value(answerKey{}).(*answer); ok {
		a.status, a.server = resp.StatusCode, resp.Header.Get("Server")
	}
}

// engineError is a control call that failed, by the engine's word or for want
// of one.
type engineError struct {
	doing  string
	status int // of the answer, 0 where there was none
	err    error
}

func (e *engineError) Error() string { return "cannot " + e.doing + ": " + e.err.Error() }

func (e *engineError) Unwrap() error { return e.err }

// refused reports whether the engine said no, so that nothing was done. A
// gateway in between may give up on an engine that goes on.
func refused(err error) bool {
	var e *engineError
	return errors.As(err, &e) && e.status >= 400 && e.status <= 501
}

// said reports whether the engine answered with a status and, in any case of
// letters, a text. The text matters: a proxy in between has statuses of its own.
func said(err error, status int, text string) bool {
	var e *engineError
	return errors.As(err, &e) && e.status == status && strings.Contains(strings.ToLower(e.err.Error()), text)
}

func noSuchContainer(err error) bool {
	return said(err, http.StatusNotFound, "no such container") ||
		said(err, http.StatusInternalServerError, "does not exist in database: no such container") // Podman's, at times
}

func noSuchImage(err error) bool {
	return said(err, http.StatusNotFound, "no such image")
}
