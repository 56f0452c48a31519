package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

type imageCommand struct {
	Root       string            `required:"" type:"existingfile" help:"Root file system, a tar."`
	Dockerfile string            `required:"" type:"existingfile" help:"Whose last stage has the image's settings."`
	Platform   platform          `required:"" help:"Such as linux/arm64."`
	Reference  string            `required:"" help:"The image's name, with its tag."`
	Created    epoch             `required:"" env:"SOURCE_DATE_EPOCH" help:"Seconds since 1970."`
	Label      map[string]string `help:"More labels: NAME=VALUE."`
	Out        string            `required:"" help:"The archive: an OCI layout that docker load takes as well."`
}

func (c *imageCommand) Run() error {
	image, err := c.build()
	if err != nil {
		return fmt.Errorf("cannot make the image of %s: %w", c.Root, err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(c.Out), ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := c.layOut(image, dir); err != nil {
		return fmt.Errorf("cannot write the image: %w", err)
	}
	return pack(dir, c.Out, c.Created)
}

// build makes an image of one layer.
func (c *imageCommand) build() (v1.Image, error) {
	system, machine, err := c.Platform.split()
	if err != nil {
		return nil, err
	}
	config, err := settings(c.Dockerfile)
	if err != nil {
		return nil, err
	}
	if len(c.Label) > 0 && config.Labels == nil {
		config.Labels = map[string]string{}
	}
	maps.Copy(config.Labels, c.Label)
	layer, err := tarball.LayerFromFile(c.Root, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(6))
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: c.Created.time()}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: created}})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created, file.Config = system, machine, created, config
	return mutate.ConfigFile(image, file)
}

// layOut writes an OCI layout, and beside it what engines read that know none.
func (c *imageCommand) layOut(image v1.Image, dir string) error {
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	system, machine, err := c.Platform.split()
	if err != nil {
		return err
	}
	err = to.AppendImage(image, layout.WithPlatform(v1.Platform{OS: system, Architecture: machine}), layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": c.Reference, "org.opencontainers.image.ref.name": c.Reference,
	}))
	if err != nil {
		return err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	entry := tarball.Descriptor{Config: blob(manifest.Config.Digest), RepoTags: []string{c.Reference}}
	for _, layer := range manifest.Layers {
		entry.Layers = append(entry.Layers, blob(layer.Digest))
	}
	text, err := json.Marshal([]tarball.Descriptor{entry})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o644)
}

// pack writes a tar of a directory's files, in the order of their names.
func pack(dir, file string, created epoch) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			_ = os.Remove(file)
		}
	}()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: info.Size(), ModTime: created.time(), Format: tar.FormatUSTAR}
		if entry.IsDir() {
			h.Typeflag, h.Name, h.Mode, h.Size = tar.TypeDir, h.Name+"/", 0o755, 0
		}
		if err := w.WriteHeader(h); err != nil || entry.IsDir() {
			return err
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = io.Copy(w, in)
		return err
	})
	return errors.Join(err, w.Close())
}
