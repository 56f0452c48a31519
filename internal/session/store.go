package session

import (
	"context"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// Store keeps the records of sessions for the next process. Methods are safe for
// concurrent use, but calls for one session are ordered by the caller.
type Store interface {
	// Load returns all records that can be read. What cannot be read is put aside,
	// said in the log, and never deleted. Complete tells whether the records are
	// known to be all: a runner without one then belongs to nobody.
	Load(ctx context.Context) (records []Record, complete bool, err error)
	// Save keeps a record in place of the session's older one. Once it returns the
	// record survives the process and a loss of power.
	Save(ctx context.Context, r Record) error
	// Delete forgets a session. Forgetting one that is not kept succeeds. The
	// record may come back after a loss of power.
	Delete(ctx context.Context, id string) error
	// SetComplete says that from now on the records are all there are.
	SetComplete(ctx context.Context) error
}

// Phase is how far a session was in its life when its record was kept.
type Phase string

// The phases. A session is first kept when it is about to be answered: a runner
// that never got that far is one that no record names.
const (
	PhaseLive   Phase = "live"   // a client may use it
	PhaseEnding Phase = "ending" // its workspace is being kept; nobody may use it any more
	PhaseGone   Phase = "gone"   // its runner is to be removed
)

// Record is what must survive a restart of the service. It holds credentials:
// stores encrypt it.
type Record struct {
	ID     string `json:"id"`
	Driver string `json:"driver"` // the name in runner.Info; Handle is nothing to another
	Handle string `json:"handle"`
	Phase  Phase  `json:"phase"`

	Created time.Time     `json:"created"`
	LastUse time.Time     `json:"last_use"`
	IdleTTL time.Duration `json:"idle_ttl"`

	ArchiveKey string `json:"archive_key,omitempty"`
	// Storage is the block remembered at creation, in PhaseEnding the one that the
	// workspace goes to. It is nil where there is none.
	Storage *storage.Config `json:"storage,omitempty"`
	// Used means that a program ran or a file was written. Without that the
	// workspace is worth nothing: it is what was restored, or empty.
	Used bool `json:"used,omitempty"`
	// Restored means that there was something to restore, be it in vain.
	Restored bool `json:"restored,omitempty"`
	// Lineage says how the workspace relates to what is kept of it.
	Lineage spool.Lineage `json:"lineage,omitzero"`
	// KeepPending means that the spool holds an archive which could not be restored.
	KeepPending bool `json:"keep_pending,omitempty"`

	// Ended is when the session ended, and Reaped that it was for being idle. Both
	// are for PhaseEnding.
	Ended  time.Time `json:"ended,omitzero"`
	Reaped bool      `json:"reaped,omitempty"`
}
