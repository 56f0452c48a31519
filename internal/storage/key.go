package storage

import (
	"strings"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
)

// MaxKeyBytes is the longest key, prefix included, that every store takes.
const MaxKeyBytes = 1024

// archiveSuffix ends the key of every workspace archive.
const archiveSuffix = ".tgz"

// Key returns the key that an object has in the bucket: the prefix without its
// trailing slash, a slash, and key. A key that is empty, absolute, too long or
// holds ".." or NUL is fault.Invalid, and so is any key under such a prefix.
func (c Config) Key(key string) (string, error) {
	prefix := strings.TrimRight(c.Prefix, "/")
	if prefix == "" {
		// All slashes is an absolute prefix; none at all is the default one.
		if c.Prefix != "" {
			return "", errKey()
		}
		prefix = strings.TrimRight(DefaultPrefix, "/")
	}
	full := prefix + "/" + key
	if !fits(prefix) || !fits(key) || len(full) > MaxKeyBytes {
		return "", errKey()
	}
	return full, nil
}

// FullKey is Key for a key that may have its prefix already. What begins with
// the prefix and a slash is taken as full; no key leads out of the prefix.
func (c Config) FullKey(key string) (string, error) {
	full, err := c.Key(key)
	if err != nil {
		return "", err
	}
	prefix := full[:len(full)-len(key)]
	if rest, ok := strings.CutPrefix(key, prefix); ok {
		return c.Key(rest)
	}
	return full, nil
}

// ArchiveKey returns the key of the workspace archive with that stem.
func (c Config) ArchiveKey(stem string) (string, error) {
	return c.Key("workspaces/" + stem + archiveSuffix)
}

// Stem returns the name that a session's archive has: the archive key where it
// is one, else the session's id.
func Stem(archiveKey, sessionID string) string {
	if ValidArchiveKey(archiveKey) {
		return archiveKey
	}
	return sessionID
}

// ValidArchiveKey reports whether s is 1 to 128 letters, digits, underscores and
// hyphens of ASCII.
func ValidArchiveKey(s string) bool {
	if len(s) == 0 || len(s) > 128 {
		return false
	}
	for _, b := range []byte(s) {
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '_', b == '-':
		default:
			return false
		}
	}
	return true
}

// fits tells whether s is neither empty nor absolute and cannot climb.
func fits(s string) bool {
	return s != "" && s[0] != '/' && !strings.Contains(s, "..") && !strings.Contains(s, "\x00")
}

func errKey() error { return fault.New(fault.Invalid, DetailInvalidKey) }
