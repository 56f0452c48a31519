package main

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
	"github.com/hjxwz123/aivory-sandbox/internal/session/filestore"
	"github.com/hjxwz123/aivory-sandbox/internal/session/seal"
	"github.com/hjxwz123/aivory-sandbox/internal/session/spool"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/local"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/oss"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/upload"
)

const (
	// maxSpool bounds the archives that wait for their store, on disk, bytes: ten
	// of the largest, and many more of ordinary ones.
	maxSpool = 2 << 30
	// spareParts is how many parts of uploads are in memory, beyond one for each
	// upload.
	spareParts = 3
)

// keptState is what survives the process.
type keptState struct {
	records *filestore.Store
	spool   *spool.Spool
}

// openKept opens what an earlier process kept in the state directory. It is
// encrypted with the API key; without one, with a key that lies beside it.
func openKept(cfg config.Config, state *stateDir, log *slog.Logger) (keptState, error) {
	key := seal.FromSecret(cfg.APIKey)
	if cfg.APIKey == "" {
		var err error
		if key, err = seal.FromFile(filepath.Join(state.path, "key")); err != nil {
			return keptState{}, err
		}
	}
	records, err := filestore.Open(state.path, key, log)
	if err != nil {
		return keptState{}, err
	}
	waiting, err := spool.Open(state.path, key, maxSpool, log)
	if err != nil {
		return keptState{}, err
	}
	return keptState{records, waiting}, nil
}

// objects is object storage with all its providers.
type objects struct {
	opener *storage.Opener
	local  *local.Store
	s3     *s3.Driver
	oss    *oss.Driver
}

// openObjects makes the providers. It makes no request.
func openObjects(cfg config.Config) (*objects, error) {
	parts := upload.NewParts(spareParts)
	o := &objects{
		s3: s3.New(s3.Options{
			MaxAttempts: cfg.S3MaxAttempts, ConnectTimeout: cfg.S3ConnectTimeout, ReadTimeout: cfg.S3ReadTimeout, Parts: parts,
		}),
		// OSS has a variable for connecting alone; for the rest it is as S3.
		oss: oss.New(oss.Options{
			MaxAttempts: cfg.S3MaxAttempts, ConnectTimeout: cfg.OSSConnectTimeout, ReadTimeout: cfg.S3ReadTimeout, Parts: parts,
		}),
	}
	drivers := map[string]storage.Driver{"s3": storage.Observed("s3", o.s3.Open), "aliyun_oss": storage.Observed("aliyun_oss", o.oss.Open)}
	if cfg.LocalStorageDir != "" {
		var err error
		if o.local, err = local.Open(cfg.LocalStorageDir); err != nil {
			return nil, fmt.Errorf("SANDBOX_LOCAL_STORAGE_DIR: %w", err)
		}
		drivers["local"] = storage.Observed("local", o.local.Driver())
	}
	o.opener = storage.NewOpener(drivers)
	return o, nil
}

// Close lets go of connections and of the local directory.
func (o *objects) Close() error {
	o.s3.Close()
	o.oss.Close()
	if o.local == nil {
		return nil
	}
	return o.local.Close()
}
