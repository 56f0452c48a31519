package docker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"

	"github.com/moby/moby/client"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

const detailNoImage = "the runner image is not available"

// labelLocalhost on an image says that it resolves localhost without
// /etc/hosts. Its runners need none of the files that the engine makes for a
// network, and start in about half the time without.
const labelLocalhost = "aivory.localhost"

// image is what a runner's container needs to know of its image.
type image struct {
	localhost bool     // resolves localhost by itself
	volumes   []string // clean paths that the image declares as volumes
}

// imageState remembers that the image was seen, and holds the pull under way.
type imageState struct {
	mu   sync.Mutex
	seen *image
	pull *pull
}

// pull is one pull, shared by all who wait for it.
type pull struct {
	done chan struct{} // closed at the end
	err  error         // valid then
}

func (s *imageState) get() *image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

func (s *imageState) set(img *image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = img
}

func (s *imageState) ready() bool { return s.get() != nil }

// ensureImage returns what is known of the image, looking and pulling where
// this process has not seen it yet. No lock is held meanwhile.
func (d *Driver) ensureImage(ctx context.Context) (*image, error) {
	if img := d.image.get(); img != nil {
		return img, nil
	}
	img, err := d.inspectImage(ctx)
	if !noSuchImage(err) {
		return img, err
	}
	if err := d.pullImage(ctx); err != nil {
		return nil, err
	}
	img, err = d.inspectImage(ctx)
	if noSuchImage(err) {
		// A stream of progress that just stops is no error to the engine's client.
		err = fault.Wrap(fault.Internal, detailNoImage, fmt.Errorf("pulling image %s ended without it: %w", d.cfg.Image, err))
	}
	return img, err
}

// inspectImage looks for the image and remembers it.
func (d *Driver) inspectImage(ctx context.Context) (*image, error) {
	found, err := call(ctx, d.engine, "inspect image "+d.cfg.Image, func(ctx context.Context, c *client.Client) (client.ImageInspectResult, error) {
		return c.ImageInspect(ctx, d.cfg.Image)
	})
	if err != nil {
		return nil, err
	}
	img := &image{}
	if found.Config != nil {
		img.localhost = found.Config.Labels[labelLocalhost] == "1"
		for v := range found.Config.Volumes {
			img.volumes = append(img.volumes, path.Clean("/"+v))
		}
		slices.Sort(img.volumes)
	}
	d.image.set(img)
	return img, nil
}

// PullOnStart pulls the image in the background, so that a newer one is used
// from then on, and logs how that went. It returns at once, and no create waits
// for it where an image is there already. Close ends it.
func (d *Driver) PullOnStart() {
	d.jobs.Go(func() {
		err := d.pullImage(d.life)
		if err == nil {
			_, err = d.inspectImage(d.life)
		}
		switch {
		case err == nil:
			d.log.Info("runner image pulled", "image", d.cfg.Image)
		case d.life.Err() == nil:
			d.log.Warn("runner image not pulled at start", "image", d.cfg.Image, "error", err)
		}
	})
}

// pullImage pulls the image or waits for the pull under way. ctx bounds the
// waiting alone: a caller who goes away does not take the pull from the others.
func (d *Driver) pullImage(ctx context.Context) error {
	p := d.startPull()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for image %s: %w", d.cfg.Image, context.Cause(ctx))
	}
}

func (d *Driver) startPull() *pull {
	s := &d.image
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pull != nil {
		return s.pull
	}
	p := &pull{done: make(chan struct{})}
	s.pull = p
	d.jobs.Go(func() {
		err := d.doPull()
		s.mu.Lock()
		s.pull = nil
		s.mu.Unlock()
		p.err = err
		close(p.done)
	})
	return p
}

func (d *Driver) doPull() error {
	ctx, cancel := context.WithTimeout(d.life, d.cfg.PullTimeout)
	defer cancel()
	d.log.Info("pulling runner image", "image", d.cfg.Image)
	err := d.engine.pull(ctx, d.cfg.Image)
	switch {
	case err == nil:
		return nil
	case d.life.Err() != nil:
		err = errors.New("the driver was closed")
	case ctx.Err() != nil:
		err = fmt.Errorf("not done within %v", d.cfg.PullTimeout)
	}
	return fault.Wrap(fault.Internal, detailNoImage, fmt.Errorf("cannot pull image %s: %w", d.cfg.Image, err))
}

// pull is the one call whose time is not bounded as the others' is.
func (e *engine) pull(ctx context.Context, image string) error {
	c, err := e.client(ctx)
	if err != nil {
		return err
	}
	progress, err := c.ImagePull(ctx, image, client.ImagePullOptions{RegistryAuth: registryAuth(image)})
	if err != nil {
		return err
	}
	return progress.Wait(ctx) // closes it
}
