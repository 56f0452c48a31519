package docker

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// Labels and names of runners. The first three labels and the name are the
// older service's too.
const (
	labelSandbox   = "aivory.sandbox"
	labelSession   = "aivory.session_id"
	labelCreated   = "aivory.created_at"
	labelInstance  = "aivory.instance"
	sandboxMarking = "1"
)

// handle is how the other calls reach a container: by its name where that is a
// runner's, since a socket proxy can tell from nothing else whose it is.
func handle(c container.Summary) string {
	for _, name := range c.Names {
		name = strings.TrimPrefix(name, "/")
		if session, ok := strings.CutPrefix(name, runner.NamePrefix); ok && runner.ValidSessionID(session) {
			return name
		}
	}
	return c.ID
}

// List implements runner.Driver. A service begins with it, so it is here that the
// engine is looked at.
func (d *Driver) List(ctx context.Context) ([]runner.Instance, error) {
	var found client.ContainerListResult
	var err error
	for range 5 {
		found, err = call(ctx, d.engine, "list containers", func(ctx context.Context, c *client.Client) (client.ContainerListResult, error) {
			return c.ContainerList(ctx, client.ContainerListOptions{
				All:     true,
				Filters: make(client.Filters).Add("label", labelSandbox+"="+sandboxMarking),
			})
		})
		if !listedHalf(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if d.engine.podman.Load() && d.podmanAsked.CompareAndSwap(false, true) {
		d.warnOfRootless(ctx)
	}
	var list []runner.Instance
	for _, c := range found.Items {
		instance, labelled := c.Labels[labelInstance]
		if labelled && instance != d.cfg.Instance || c.Labels[labelSandbox] != sandboxMarking {
			continue
		}
		inst := runner.Instance{
			ID:        handle(c),
			CreatedAt: time.Unix(c.Created, 0),
			// A paused container holds its files; somebody means to wake it.
			Running: c.State == container.StateRunning || c.State == container.StatePaused,
			Legacy:  !labelled,
		}
		if id := c.Labels[labelSession]; runner.ValidSessionID(id) {
			inst.SessionID = id
		}
		if sec, err := strconv.ParseInt(c.Labels[labelCreated], 10, 64); err == nil {
			inst.CreatedAt = time.Unix(sec, 0)
		}
		list = append(list, inst)
	}
	return list, nil
}

// Destroy implements runner.Driver. It returns when the container is gone, and ends
// the streams to it. Where
// somebody else is removing it, it waits for that, as long as one control call
// may take.
func (d *Driver) Destroy(ctx context.Context, id string) error {
	if !handlePattern.MatchString(id) {
		return nil // the engine has no container of that name
	}
	deadline := time.Now().Add(d.cfg.CallTimeout)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := do(ctx, d.engine, "remove container "+id, func(ctx context.Context, c *client.Client) error {
			_, err := c.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			return err
		})
		if err == nil || noSuchContainer(err) {
			d.streams.end(id)
			return nil
		}
		if !said(err, http.StatusConflict, "already in progress") || time.Until(deadline) <= pause {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
