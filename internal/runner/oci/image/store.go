// Package image keeps unpacked runner images in a directory.
//
//	images/<digest>/root        the root file system
//	images/<digest>/image.json  what else the image says
//	references.json             which names mean which digest
//	new/                        an import under way, or what a killed one left
//	lock                        held while any of it changes
//
// Several processes may use one store.
package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// Annotation marks a bundle with the digest of the image that it uses.
const Annotation = "aivory.image"

// BundleConfig is the file in a bundle that bears the annotation.
const BundleConfig = "config.json"

// ErrNotFound means that the store has no such image.
var ErrNotFound = errors.New("no such image")

// Image is an unpacked image.
type Image struct {
	// Digest names the content: "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
	// Root is the path of the root file system. It must not be changed.
	Root string `json:"-"`
	// Env, Volumes and Labels are the image's own settings; volumes are clean
	// absolute paths.
	Env     []string          `json:"env,omitempty"`
	Volumes []string          `json:"volumes,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// Size is what the files hold, bytes.
	Size     int64     `json:"size"`
	Imported time.Time `json:"imported"`
}

// Store is a directory of images. Its methods are safe for concurrent use, also
// by several processes.
type Store struct {
	dir string
	// bundles matches the directories of bundles that may use an image.
	bundles string
}

// Open returns the store in dir, which is made with mode 0700 where it is
// missing. Bundles is a pattern, as filepath.Glob takes it, of the bundles whose
// images are in use.
func Open(dir, bundles string) (*Store, error) {
	if err := os.MkdirAll(filepath.Join(dir, "images"), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the image directory: %w", err)
	}
	return &Store{dir: dir, bundles: bundles}, nil
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// place is the directory of the image with a digest, which must be well-formed.
func (s *Store) place(digest string) string {
	return filepath.Join(s.dir, "images", strings.TrimPrefix(digest, "sha256:"))
}

// Find returns the image of a reference: a name that was given at the import, or
// a digest. A store that has none is ErrNotFound.
func (s *Store) Find(reference string) (*Image, error) {
	digest := reference
	if !digestPattern.MatchString(reference) {
		names, err := s.references()
		if err != nil {
			return nil, err
		}
		if digest = names[Normal(reference)]; !digestPattern.MatchString(digest) {
			return nil, fmt.Errorf("%w: %s", ErrNotFound, reference)
		}
	}
	return s.read(digest)
}

func (s *Store) read(digest string) (*Image, error) {
	b, err := os.ReadFile(filepath.Join(s.place(digest), "image.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, digest)
	}
	img := &Image{}
	if err == nil {
		err = json.Unmarshal(b, img)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read image %s: %w", digest, err)
	}
	img.Digest, img.Root = digest, filepath.Join(s.place(digest), "root")
	return img, nil
}

// Hold returns an image like Find, which cannot be removed until release is
// called. By then a bundle must name it.
func (s *Store) Hold(reference string) (img *Image, release func(), err error) {
	release, err = s.lock(unix.LOCK_SH)
	if err != nil {
		return nil, nil, err
	}
	if img, err = s.Find(reference); err != nil {
		release()
		return nil, nil, err
	}
	return img, release, nil
}

// lock takes the store's lock and returns what lets go of it. The kernel does,
// too, when the process ends.
func (s *Store) lock(how int) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the image directory: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot lock the image directory: %w", err)
	}
	return func() { f.Close() }, nil
}

// Entry is an image with the names that mean it.
type Entry struct {
	*Image
	References []string
}

// List returns all images, the newest first.
func (s *Store) List() ([]Entry, error) {
	names, err := s.references()
	if err != nil {
		return nil, err
	}
	places, err := os.ReadDir(filepath.Join(s.dir, "images"))
	if err != nil {
		return nil, fmt.Errorf("cannot list images: %w", err)
	}
	var list []Entry
	for _, p := range places {
		img, err := s.read("sha256:" + p.Name())
		if errors.Is(err, ErrNotFound) {
			continue // being removed
		}
		if err != nil {
			return nil, err
		}
		e := Entry{Image: img}
		for name, digest := range names {
			if digest == img.Digest {
				e.References = append(e.References, name)
			}
		}
		slices.Sort(e.References)
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return b.Imported.Compare(a.Imported) })
	return list, nil
}

// Normal is the reference with the tag that a name without one means.
func Normal(reference string) string {
	if last := reference[strings.LastIndexByte(reference, '/')+1:]; !strings.ContainsAny(last, ":@") {
		return reference + ":latest"
	}
	return reference
}

func (s *Store) references() (map[string]string, error) {
	names := map[string]string{}
	b, err := os.ReadFile(filepath.Join(s.dir, "references.json"))
	if errors.Is(err, os.ErrNotExist) {
		return names, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &names)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the names of images: %w", err)
	}
	return names, nil
}

// setReferences replaces all names. The caller holds the lock.
func (s *Store) setReferences(names map[string]string) error {
	b, err := json.MarshalIndent(names, "", "  ")
	if err == nil {
		err = renameio.WriteFile(filepath.Join(s.dir, "references.json"), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write the names of images: %w", err)
	}
	return nil
}
