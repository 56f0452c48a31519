package docker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// handlePattern is what the engine takes for an identifier or a name. Handles
// become parts of a URL and come from stored state.
var handlePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

var programUser = fmt.Sprintf("%d:%d", runner.ProgramUID, runner.ProgramGID)

// Dial implements runner.Driver. Besides the context the call timeout bounds
// the start. A command that cannot be started, for there is no such file, shows
// as a stream that says so in the engine's words and ends: the engine starts
// the command after it has given the connection away.
func (d *Driver) Dial(ctx context.Context, id string, command, env []string) (runner.Stream, error) {
	if !handlePattern.MatchString(id) {
		return nil, fmt.Errorf("cannot dial %q: %w", id, runner.ErrNotFound)
	}
	s, err := d.exec(ctx, id, client.ExecCreateOptions{
		// gVisor runs a command as root where no user is given.
		User:         programUser,
		AttachStdin:  true,
		AttachStdout: true,
		AttachStderr: true,
		Env:          env,
		WorkingDir:   "/",
		Cmd:          command,
	})
	if err = asNotFound(err); said(err, http.StatusConflict, stateImproper) || said(err, http.StatusInternalServerError, stateImproper) {
		err = d.asStopped(ctx, id, err)
	}
	if err != nil {
		return nil, err
	}
	d.streams.add(id, s)
	return s, nil
}

// exec starts a command in a container.
func (d *Driver) exec(ctx context.Context, id string, options client.ExecCreateOptions) (*stream, error) {
	exec, err := call(ctx, d.engine, "prepare a command in container "+id, func(ctx context.Context, c *client.Client) (client.ExecCreateResult, error) {
		return c.ExecCreate(ctx, id, options)
	})
	if err != nil {
		return nil, err
	}
	return call(ctx, d.engine, "start a command in container "+id, func(ctx context.Context, c *client.Client) (*stream, error) {
		return d.engine.attach(ctx, c, exec.ID)
	})
}

// asNotFound marks an error that means that the container is gone or stopped.
// One that is paused is neither.
func asNotFound(err error) error {
	if err == nil {
		return nil
	}
	if noSuchContainer(err) || said(err, http.StatusConflict, "is not running") ||
		said(err, http.StatusInternalServerError, "is not running") { // it went between the two calls of a dial
		return fmt.Errorf("%w: %w", runner.ErrNotFound, err)
	}
	return err
}

// attach starts a prepared command and takes over the connection. The Docker
// client's own way drops the reason when the engine refuses, and reads through
// two small buffers. Once attach has returned, ctx no longer matters.
func (e *engine) attach(ctx context.Context, c *client.Client, execID string) (s *stream, err error) {
	base, err := client.ParseHostURL(c.DaemonHost())
	if err != nil {
		return nil, err
	}
	target := url.URL{Scheme: "http", Host: client.DummyHost, Path: path.Join("/", base.Path, "v"+c.ClientVersion(), "exec", execID, "start")}
	if base.Scheme != "unix" {
		target.Host = base.Host
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), strings.NewReader(`{"Detach":false,"Tty":false}`))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")

	conn, err := c.Dialer()(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if !stop() && err == nil {
			s, err = nil, context.Cause(ctx)
		}
		if err != nil {
			_ = conn.Close()
		}
	}()

	if err := req.Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(conn, readBuffer)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	e.note(resp)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, refusal(resp)
	}
	return newStream(conn, r), nil
}

// refusal is the error that an answer without a connection stands for.
func refusal(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	_ = resp.Body.Close()
	if text := strings.TrimSpace(string(body)); text != "" {
		return errors.New(resp.Status + ": " + text)
	}
	return errors.New(resp.Status)
}
