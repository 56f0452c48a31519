package api

import (
	"net/http"
	"unicode/utf8"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

func (a *api) putObject(w *response, r *http.Request, _ pathVars) error {
	var (
		key, contentType string
		expiresIn        *int64
		block            map[string]any
	)
	data := upload{spool: spool{dir: a.spool}}
	defer data.close()
	err := readBody(w, r, false, []field{
		stringField("key", &key),
		uploadField("data_base64", &data),
		stringField("content_type", &contentType).orNull(),
		intField("expires_in", &expiresIn).orNull(),
		dictField("storage", &block).orNull(),
	})
	if err != nil {
		return err
	}
	if data.err != nil {
		return data.err
	}
	cfg, key := storage.ParseConfig(block), objectKey(key)
	if !data.valid() {
		// Said last: storage and key come first.
		if err := a.storage.Check(r.Context(), cfg, key); err != nil {
			return err
		}
		return errBase64()
	}
	put, err := a.storage.Put(r.Context(), cfg, key, contentType, data.open(), expiresIn)
	if err != nil {
		return err
	}
	return w.sendJSON(http.StatusOK, struct {
		Provider  string `json:"provider"`
		Key       string `json:"key"`
		URL       string `json:"url"`
		ExpiresIn int64  `json:"expires_in"`
	}{put.Provider, put.Key, put.URL, put.ExpiresIn})
}

func (a *api) deleteObject(w *response, r *http.Request, _ pathVars) error {
	var key string
	var block map[string]any
	err := readBody(w, r, false, []field{
		stringField("key", &key),
		dictField("storage", &block).orNull(),
	})
	if err != nil {
		return err
	}
	full, err := a.storage.Delete(r.Context(), storage.ParseConfig(block), objectKey(key))
	if err != nil {
		return err
	}
	return w.sendJSON(http.StatusOK, struct {
		OK  bool   `json:"ok"`
		Key string `json:"key"`
	}{true, full})
}

func (a *api) collectObjects(w *response, r *http.Request, _ pathVars) error {
	var maxAge *int64
	var block map[string]any
	err := readBody(w, r, false, []field{
		intField("max_age_seconds", &maxAge),
		dictField("storage", &block).orNull(),
	})
	if err != nil {
		return err
	}
	got, err := a.storage.GC(r.Context(), storage.ParseConfig(block), *maxAge)
	if err != nil {
		return err
	}
	return w.sendJSON(http.StatusOK, struct {
		Deleted    int   `json:"deleted"`
		Scanned    int   `json:"scanned"`
		FreedBytes int64 `json:"freed_bytes"`
	}{got.Deleted, got.Scanned, got.FreedBytes})
}

// objectKey returns a key as it is, or the empty one, which is no key, for one
// that is not Unicode.
func objectKey(key string) string {
	if !utf8.ValidString(key) {
		return ""
	}
	return key
}
