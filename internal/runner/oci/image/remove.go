package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrInUse means that runners have the image.
var ErrInUse = errors.New("image is in use")

// Remove removes an image, by a name or a digest, with all its names. A name of
// several takes only itself away. One that runners use is ErrInUse.
func (s *Store) Remove(reference string) error {
	release, err := s.lock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer release()
	img, err := s.Find(reference)
	if err != nil {
		return err
	}
	names, err := s.references()
	if err != nil {
		return err
	}
	if !digestPattern.MatchString(reference) {
		delete(names, Normal(reference))
		for _, digest := range names {
			if digest == img.Digest {
				return s.setReferences(names)
			}
		}
	}
	users, err := s.users(img.Digest)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%w by %d runners, %s among them: end their sessions first", ErrInUse, len(users), users[0])
	}
	for name, digest := range names {
		if digest == img.Digest {
			delete(names, name)
		}
	}
	if err := s.setReferences(names); err != nil {
		return err
	}
	// Out of its place at once, so that no part of an image is ever taken for it.
	gone, err := os.MkdirTemp(s.dir, "new-")
	if err == nil {
		err = os.Rename(s.place(img.Digest), filepath.Join(gone, "gone"))
	}
	if err == nil {
		err = os.RemoveAll(gone)
	}
	if err != nil {
		return fmt.Errorf("cannot remove image %s: %w", img.Digest, err)
	}
	return nil
}

// users names the runners that use an image. The caller holds the lock, so that
// there are no new ones.
func (s *Store) users(digest string) ([]string, error) {
	bundles, err := filepath.Glob(s.bundles)
	if err != nil {
		return nil, fmt.Errorf("cannot look for runners: %w", err)
	}
	var users []string
	for _, bundle := range bundles {
		b, err := os.ReadFile(filepath.Join(bundle, BundleConfig))
		if errors.Is(err, os.ErrNotExist) {
			continue // it is going
		}
		var config struct{ Annotations map[string]string }
		if err == nil {
			err = json.Unmarshal(b, &config)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot tell which image a runner uses: %w", err)
		}
		if config.Annotations[Annotation] == digest {
			users = append(users, filepath.Base(bundle))
		}
	}
	return users, nil
}
