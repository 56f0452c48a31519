package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

type pushCommand struct {
	Reference []string `required:"" sep:"none" help:"What the images are called, with a tag; may be given again."`
	Archives  []string `arg:"" type:"existingfile" help:"What the command image wrote, one for each platform."`
}

// Run pushes the images, and an index of them. Credentials are those of docker
// login.
func (c *pushCommand) Run() error {
	dir, err := os.MkdirTemp("", "aivory-push-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, archive := range c.Archives {
		to := filepath.Join(dir, fmt.Sprint(i))
		if err := unpack(archive, to); err != nil {
			return fmt.Errorf("cannot read %s: %w", archive, err)
		}
		one, err := layout.ImageIndexFromPath(to)
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", archive, err)
		}
		manifest, err := one.IndexManifest()
		if err != nil {
			return err
		}
		for _, desc := range manifest.Manifests {
			image, err := one.Image(desc.Digest)
			if err != nil {
				return err
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: desc.Platform}})
		}
	}
	for _, reference := range c.Reference {
		to, err := name.NewTag(reference, name.StrictValidation)
		if err != nil {
			return err
		}
		if err := remote.WriteIndex(to, index, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("cannot push %s: %w", reference, err)
		}
	}
	return nil
}

// unpack writes the files of an archive of ours. Names that lead elsewhere are
// refused.
func unpack(archive, dir string) error {
	in, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(h.Name) {
			return fmt.Errorf("holds %q", h.Name)
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		out, err := os.Create(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		if err = errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}
