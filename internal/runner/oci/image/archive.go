package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Import imports a file and lets reference mean it: a root file system as a tar,
// plain or in gzip, an archive that `docker save` wrote, or an OCI layout, as a
// directory or a tar. Progress, where it is not nil, is told how many bytes were
// unpacked.
func (s *Store) Import(ctx context.Context, file, reference string, progress func(int64)) (*Image, error) {
	kind, err := kindOf(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", file, err)
	}
	switch kind {
	case "docker":
		return s.importDocker(ctx, file, reference, progress)
	case "layout":
		return s.importLayout(ctx, file, reference, progress)
	case "oci":
		dir, err := os.MkdirTemp("", "aivory-image-")
		if err != nil {
			return nil, fmt.Errorf("cannot make a directory for the image: %w", err)
		}
		defer os.RemoveAll(dir)
		if err := extract(ctx, file, dir); err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", file, err)
		}
		return s.importLayout(ctx, dir, reference, progress)
	}
	return s.add(ctx, rootfs{ctx, file}, reference, progress)
}

// kindOf tells what a file holds by the names in it. What has no name of an
// archive's is a root file system; an archive's own come first or last, and its
// blobs are few, so the look is short where it matters.
func kindOf(ctx context.Context, file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(file, "oci-layout")); err != nil {
			return "", errors.New("the directory is no OCI layout")
		}
		return "layout", nil
	}
	f, in, err := rootfs{ctx, file}.open()
	if err != nil {
		return "", err
	}
	defer f.Close()
	archive := tar.NewReader(bounded{&tree{ctx: ctx}, in})
	kind := "rootfs"
	for range 1 << 10 {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		switch path.Clean(h.Name) {
		case "manifest.json": // newer engines write an OCI layout around it
			return "docker", nil
		case "oci-layout":
			kind = "oci"
		case "etc", "usr":
			return "rootfs", nil
		}
	}
	return kind, nil
}

// extract unpacks an archive of blobs.
func extract(ctx context.Context, file, dir string) error {
	f, in, err := rootfs{ctx, file}.open()
	if err != nil {
		return err
	}
	defer f.Close()
	t, err := newTree(ctx, dir, nil)
	if err != nil {
		return err
	}
	defer t.close()
	return t.apply(in, false)
}

func (s *Store) importDocker(ctx context.Context, file, reference string, progress func(int64)) (*Image, error) {
	image, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", file, err)
	}
	// The image's identifier, as the docker command has it: there is no manifest
	// that has a digest.
	hash, err := image.ConfigName()
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", file, err)
	}
	return s.add(ctx, layered{image: image, hash: hash, byConfig: true}, reference, progress)
}

func (s *Store) importLayout(ctx context.Context, dir, reference string, progress func(int64)) (*Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the OCI layout: %w", err)
	}
	image, hash, err := choose(index, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read the OCI layout: %w", err)
	}
	return s.add(ctx, layered{image: image, hash: hash}, reference, progress)
}

// maxIndexes bounds how deep indexes name each other.
const maxIndexes = 4

// choose returns the image of this machine's architecture.
func choose(index v1.ImageIndex, depth int) (v1.Image, v1.Hash, error) {
	if depth > maxIndexes {
		return nil, v1.Hash{}, errors.New("its indexes name each other")
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, v1.Hash{}, err
	}
	for _, m := range manifest.Manifests {
		switch {
		case m.MediaType.IsIndex():
			inner, err := index.ImageIndex(m.Digest)
			if err != nil {
				return nil, v1.Hash{}, err
			}
			if image, hash, err := choose(inner, depth+1); err == nil {
				return image, hash, nil
			}
		case m.MediaType.IsImage() && (m.Platform == nil || m.Platform.Architecture == runtime.GOARCH && m.Platform.OS == "linux"):
			image, err := index.Image(m.Digest)
			return image, m.Digest, err
		}
	}
	return nil, v1.Hash{}, fmt.Errorf("it holds no image for linux/%s", runtime.GOARCH)
}
