package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
)

// A runner whose root file system is writable has a layer over the shared one:
// "upper" holds what it writes, "work" is overlayfs's own, and on "root" the two
// are mounted together.

func (d *Driver) layer(id string) string { return filepath.Join(d.cfg.LayerDir, id) }

// makeLayer mounts a runner's own root file system and returns its path.
func (d *Driver) makeLayer(id string, img *image.Image, l runner.Limits) (string, error) {
	if d.host.rootless != nil {
		return "", errors.New("cannot make a writable root file system without root: leave SANDBOX_READ_ONLY_ROOTFS on")
	}
	if l.DiskSize != "" && d.quotaRefused.CompareAndSwap(false, true) {
		d.log.Warn("the oci driver has no disk quota, runners are made without", "size", l.DiskSize)
	}
	upper, work, root := filepath.Join(d.layer(id), "upper"), filepath.Join(d.layer(id), "work"), filepath.Join(d.layer(id), "root")
	for _, dir := range []string{d.layer(id), upper, work, root} {
		if err := makeDir(dir, 0o755, 0, 0); err != nil {
			return "", fmt.Errorf("cannot make a layer for runner %s: %w", id, err)
		}
	}
	for _, dir := range runner.Writable {
		var err error
		if parent := filepath.Dir(dir.Path); parent != "/" {
			err = makeDir(filepath.Join(upper, parent), 0o755, 0, 0)
		}
		if err == nil {
			err = makeDir(filepath.Join(upper, dir.Path), dir.Mode, runner.ProgramUID, runner.ProgramGID)
		}
		if err != nil {
			return "", fmt.Errorf("cannot make a layer for runner %s: %w", id, err)
		}
	}
	options := "lowerdir=" + escaped(img.Root) + ",upperdir=" + escaped(upper) + ",workdir=" + escaped(work)
	if err := unix.Mount("overlay", root, "overlay", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		return "", fmt.Errorf("cannot mount a writable layer over the image: %w; SANDBOX_READ_ONLY_ROOTFS=0 needs overlayfs, "+
			"and SANDBOX_STATE_DIR on a file system that it can write to, such as ext4 or xfs", err)
	}
	return root, nil
}

// makeDir makes a directory with just this mode, whatever the umask.
func makeDir(path string, mode uint32, uid, gid int) error {
	if err := unix.Mkdir(path, mode); err != nil {
		return err
	}
	if err := unix.Chown(path, uid, gid); err != nil {
		return err
	}
	return unix.Chmod(path, mode)
}

// escaped is a path as a mount option of overlayfs has it.
func escaped(path string) string {
	return strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace(path)
}

// removeLayer removes what a runner wrote, if it had a layer.
func (d *Driver) removeLayer(id string) error {
	err := unix.Unmount(filepath.Join(d.layer(id), "root"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) && d.host.rootless == nil {
		return fmt.Errorf("cannot unmount the layer of runner %s: %w", id, err)
	}
	if err := os.RemoveAll(d.layer(id)); err != nil {
		return fmt.Errorf("cannot remove the layer of runner %s: %w", id, err)
	}
	return nil
}

// removeLostLayers removes layers of runners whose bundles are gone, as after a
// restart of the machine.
func (d *Driver) removeLostLayers() error {
	entries, err := os.ReadDir(d.cfg.LayerDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if _, err := os.Lstat(d.bundle(e.Name())); handlePattern.MatchString(e.Name()) && errors.Is(err, os.ErrNotExist) {
			errs = append(errs, d.removeLayer(e.Name()))
		}
	}
	return errors.Join(errs...)
}
