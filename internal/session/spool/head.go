package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// Head says what is to be done in an object store. It holds credentials.
type Head struct {
	// Storage and Key say where: Key is the object's whole key.
	Storage storage.Config `json:"storage"`
	Key     string         `json:"key"`
	// Stem is the name that the archive belongs to.
	Stem string `json:"stem"`
	// Time is when the archive was made, or the deletion asked for.
	Time time.Time `json:"time"`
	// Purge means that the object at Key is to be deleted; there is no body.
	Purge bool `json:"purge,omitempty"`
	// Lineage says how the archive relates to what is stored already.
	Lineage Lineage `json:"lineage,omitzero"`
	// Untidy is on how many keys, the base's and those of layers, parts of earlier
	// uploads may be left.
	Untidy int `json:"untidy,omitempty"`
}

// Lineage says how a workspace relates to what is kept of it in its store: a
// base, and on it the layers of sessions that could not see what lay below.
type Lineage struct {
	// Partial means that the store could not be read when the workspace began: its
	// archive is another layer.
	Partial bool `json:"partial,omitempty"`
	// Layers is how many layers the workspace was begun with; they are in it now.
	Layers int `json:"layers,omitempty"`
	// Bad are the keys of archives that could not be unpacked. Before one of them
	// is replaced it is copied.
	Bad []string `json:"bad,omitempty"`
}

// maxHead bounds a head on disk, bytes.
const maxHead = 64 << 10

func (s *Spool) readHead(name string) (Head, error) {
	sealed, err := seal.ReadFile(s.headPath(name), maxHead)
	if err != nil {
		return Head{}, err
	}
	plain, err := s.key.Open(sealed, "spool head "+name)
	if err != nil {
		return Head{}, err
	}
	return decodeHead(plain)
}

func decodeHead(plain []byte) (Head, error) {
	var h Head
	if err := json.Unmarshal(plain, &h); err != nil {
		return Head{}, errors.New("not a head") // the error may quote a secret
	}
	if h.Key == "" || h.Stem == "" || h.Time.IsZero() {
		return Head{}, errors.New("an incomplete head")
	}
	return h, nil
}

// writeHead makes an entry be there, or changes it.
func (s *Spool) writeHead(name string, h Head) error {
	plain, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("cannot encode a head of the spool: %w", err)
	}
	sealed, err := s.key.Seal(plain, "spool head "+name)
	if err != nil {
		return err
	}
	if err := s.step("head"); err != nil {
		return err
	}
	if err := seal.WriteFile(s.headPath(name), sealed); err != nil {
		return fmt.Errorf("%w: %w", ErrWrite, err)
	}
	if err := seal.SyncDir(s.dir); err != nil {
		return fmt.Errorf("%w: %w", ErrWrite, err)
	}
	return nil
}
