package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// layered is an image of layers.
type layered struct {
	image v1.Image
	// hash is that of the manifest or, where none has a digest, of the
	// configuration.
	hash     v1.Hash
	byConfig bool
}

func (l layered) digest() (string, error) { return l.hash.String(), nil }

// unpack lays one layer over the other. Each must be what the image's
// configuration says, whoever delivered it.
func (l layered) unpack(t *tree) (*Image, error) {
	if err := l.verify(); err != nil {
		return nil, err
	}
	config, err := l.image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("cannot read the image's configuration: %w", err)
	}
	if config.OS != "" && config.OS != "linux" || config.Architecture != "" && config.Architecture != runtime.GOARCH {
		return nil, fmt.Errorf("the image is for %s/%s, not for linux/%s", config.OS, config.Architecture, runtime.GOARCH)
	}
	layers, err := l.image.Layers()
	if err != nil {
		return nil, fmt.Errorf("cannot read the image's list of layers: %w", err)
	}
	if len(layers) != len(config.RootFS.DiffIDs) || len(layers) == 0 {
		return nil, fmt.Errorf("the image has %d layers, and %d in its configuration", len(layers), len(config.RootFS.DiffIDs))
	}
	for i, layer := range layers {
		if err := applyLayer(t, layer, config.RootFS.DiffIDs[i]); err != nil {
			return nil, fmt.Errorf("layer %d of %d: %w", i+1, len(layers), err)
		}
	}
	img := &Image{Digest: l.hash.String(), Env: config.Config.Env, Labels: config.Config.Labels}
	for v := range config.Config.Volumes {
		if v = path.Clean("/" + v); v != "/" {
			img.Volumes = append(img.Volumes, v)
		}
	}
	slices.Sort(img.Volumes)
	return img, nil
}

// verify checks that manifest and configuration are what the digest promises.
func (l layered) verify() error {
	want := l.hash
	if !l.byConfig {
		raw, err := l.image.RawManifest()
		if err != nil {
			return fmt.Errorf("cannot read the image's manifest: %w", err)
		}
		if got := hashOf(raw); got != want {
			return fmt.Errorf("the image's manifest is %s, and %s was promised", got, want)
		}
		manifest, err := l.image.Manifest()
		if err != nil {
			return fmt.Errorf("cannot read the image's manifest: %w", err)
		}
		want = manifest.Config.Digest
	}
	raw, err := l.image.RawConfigFile()
	if err != nil {
		return fmt.Errorf("cannot read the image's configuration: %w", err)
	}
	if got := hashOf(raw); got != want {
		return fmt.Errorf("the image's configuration is %s, and %s was promised", got, want)
	}
	return nil
}

func hashOf(b []byte) v1.Hash {
	sum := sha256.Sum256(b)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

func applyLayer(t *tree, layer v1.Layer, want v1.Hash) (err error) {
	r, err := layer.Uncompressed()
	if err != nil {
		return fmt.Errorf("cannot open it: %w", err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	h := sha256.New()
	if err := t.apply(io.TeeReader(r, h), true); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); want.Algorithm != "sha256" || want.Hex != got {
		return fmt.Errorf("its content is sha256:%s, and %s was promised", got, want)
	}
	return nil
}

// Pull imports the image of a reference from its registry, and lets the name
// mean it or, where that is empty, the reference. Credentials are those of the
// docker command, in $DOCKER_CONFIG or ~/.docker.
func (s *Store) Pull(ctx context.Context, reference, as string, progress func(int64)) (*Image, error) {
	if as == "" {
		as = reference
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, fmt.Errorf("cannot read the reference %q: %w", reference, err)
	}
	image, err := remote.Image(ref,
		remote.WithContext(ctx),
		remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithUserAgent("aivory-sandbox"))
	if err != nil {
		return nil, fmt.Errorf("cannot pull image %s: %w", reference, err)
	}
	hash, err := image.Digest()
	if err != nil {
		return nil, fmt.Errorf("cannot pull image %s: %w", reference, err)
	}
	return s.add(ctx, layered{image: image, hash: hash}, as, progress)
}
