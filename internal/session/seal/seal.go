// Package seal encrypts what the service keeps on disk.
//
// Everything that is sealed begins with a header of magic and salt. From the
// key's secret, the salt and a context, which says what is sealed and where it
// belongs, HKDF-SHA256 derives an AES-256-GCM key that is used for this one
// value or stream, so that nonces can be counters and nothing sealed can be
// passed off as something else. Streams are cut into chunks as age does it: the
// nonce counts them and marks the last, so that a stream that was cut short,
// reordered or extended is not opened beyond the damage.
package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrUnreadable means that something was not sealed with this key in this
// context, or has been damaged since.
var ErrUnreadable = errors.New("sealed with another key, or damaged")

const (
	magic      = "AIVORY-SEAL-1\n"
	saltSize   = 16
	headerSize = len(magic) + saltSize
	tagSize    = 16
	// Overhead is how much longer a sealed value is, bytes.
	Overhead = headerSize + tagSize

	kindValue  = "value"
	kindStream = "stream"
)

// Key seals and opens. The zero Key is not usable.
type Key struct{ secret []byte }

// FromSecret returns the key that belongs to a secret that others keep, such as
// the API key. It must not be empty.
func FromSecret(secret string) Key { return Key{secret: []byte(secret)} }

// FromFile returns the key in a file of mode 0600, which is made with random
// content where it is missing.
func FromFile(path string) (Key, error) {
	secret, err := os.ReadFile(path)
	if err == nil && len(secret) < 32 {
		return Key{}, fmt.Errorf("key file %s is too short; put the right one there, or remove it", path)
	}
	if err == nil {
		return Key{secret: secret}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return Key{}, fmt.Errorf("cannot read key file: %w", err)
	}
	secret = make([]byte, 32)
	rand.Read(secret)
	if err := WriteFile(path, secret); err != nil {
		return Key{}, fmt.Errorf("cannot make key file: %w", err)
	}
	if err := SyncDir(filepath.Dir(path)); err != nil {
		return Key{}, fmt.Errorf("cannot make key file: %w", err)
	}
	return Key{secret: secret}, nil
}

// aead returns the cipher for one value or stream.
func (k Key) aead(salt []byte, kind, context string) (cipher.AEAD, error) {
	if len(k.secret) == 0 {
		return nil, errors.New("no key")
	}
	derived, err := hkdf.Key(sha256.New, k.secret, salt, "aivory-sandbox "+kind+" "+context, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// newHeader draws a salt and returns the header that begins something sealed.
func newHeader() []byte {
	header := make([]byte, headerSize)
	copy(header, magic)
	rand.Read(header[len(magic):])
	return header
}

// Seal encrypts a value. Only Open with the same context opens it.
func (k Key) Seal(value []byte, context string) ([]byte, error) {
	header := newHeader()
	aead, err := k.aead(header[len(magic):], kindValue, context)
	if err != nil {
		return nil, fmt.Errorf("cannot seal: %w", err)
	}
	return aead.Seal(header, make([]byte, aead.NonceSize()), value, nil), nil
}

// Open decrypts what Seal returned. Its error is ErrUnreadable.
func (k Key) Open(sealed []byte, context string) ([]byte, error) {
	if len(sealed) < Overhead || !bytes.HasPrefix(sealed, []byte(magic)) {
		return nil, ErrUnreadable
	}
	aead, err := k.aead(sealed[len(magic):headerSize], kindValue, context)
	if err != nil {
		return nil, fmt.Errorf("cannot open: %w", err)
	}
	value, err := aead.Open(nil, make([]byte, aead.NonceSize()), sealed[headerSize:], nil)
	if err != nil {
		return nil, ErrUnreadable
	}
	return value, nil
}
