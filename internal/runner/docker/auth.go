package docker

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
)

// registryAuth returns what the engine needs to pull an image from a private
// registry: the credentials that "docker login" left in config.json, if any.
// Credential helpers are not asked. No error, for a public image needs nothing
// and the engine says it best when it does.
func registryAuth(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return ""
	}
	dir, err := configDir()
	if err != nil {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return ""
	}
	var file struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			IdentityToken string `json:"identitytoken"`
		} `json:"auths"`
	}
	if json.Unmarshal(b, &file) != nil {
		return ""
	}
	domain := reference.Domain(named)
	keys := []string{domain, "https://" + domain, "http://" + domain}
	if domain == "docker.io" {
		keys = []string{"https://index.docker.io/v1/", "index.docker.io", domain}
	}
	for _, key := range keys {
		entry, ok := file.Auths[key]
		if !ok {
			continue
		}
		auth := registry.AuthConfig{ServerAddress: key, IdentityToken: entry.IdentityToken}
		if plain, err := base64.StdEncoding.DecodeString(entry.Auth); err == nil {
			auth.Username, auth.Password, _ = strings.Cut(strings.TrimRight(string(plain), "\x00"), ":")
		}
		header, err := authconfig.Encode(auth)
		if err != nil {
			return ""
		}
		return header
	}
	return ""
}
