package storage_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseConfig(t *testing.T) {
	for _, c := range []struct {
		block string
		want  storage.Config
	}{
		{`null`, storage.Config{Prefix: "workspaces/"}},
		{`{}`, storage.Config{Prefix: "workspaces/"}},
		{`{"provider":" s3 ","prefix":"\taivory/\n","s3_bucket":" b ","s3_region":" r ","s3_endpoint":" e ","s3_access_key":" a ","s3_secret_key":" k "}`,
			storage.Config{Provider: "s3", Prefix: "aivory/", S3Bucket: "b", S3Region: "r", S3Endpoint: "e", S3AccessKey: "a", S3SecretKey: "k"}},
		{`{"provider":"aliyun_oss","oss_bucket":" b","oss_endpoint":"e ","oss_access_key_id":"i","oss_access_key_secret":" s "}`,
			storage.Config{Provider: "aliyun_oss", Prefix: "workspaces/", OSSBucket: "b", OSSEndpoint: "e", OSSAccessKeyID: "i", OSSAccessKeySecret: "s"}},
		{`{"provider":"Local","prefix":"  ","unknown":"x"}`, storage.Config{Provider: "Local", Prefix: "workspaces/"}},
		{`{"provider":null,"prefix":null}`, storage.Config{Prefix: "workspaces/"}},
		// What is not a string is as good as absent.
		{`{"provider":3,"prefix":["x"],"s3_bucket":{"a":1},"s3_region":true,"s3_endpoint":1.5}`, storage.Config{Prefix: "workspaces/"}},
	} {
		var block map[string]any
		if err := json.Unmarshal([]byte(c.block), &block); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, storage.ParseConfig(block)); diff != "" {
			t.Errorf("%s: %s", c.block, diff)
		}
	}
}

// However a block comes into a log line or an error, its secrets stay out.
func TestConfigShowsNoSecret(t *testing.T) {
	cfg := storage.Config{
		Provider: "s3", Prefix: "p/", S3AccessKey: "SHOWN1", S3SecretKey: "SHOWN2", OSSAccessKeyID: "SHOWN3", OSSAccessKeySecret: "SHOWN4",
		S3Endpoint: "https://SHOWN5@host",
	}
	var out bytes.Buffer
	for _, v := range []any{cfg, &cfg} {
		fmt.Fprintf(&out, "%v %+v %#v %s\n", v, v, v, v)
		for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
			slog.New(h).With("with", v).WithGroup("g").Info("m", "storage", v)
		}
	}
	if strings.Contains(out.String(), "SHOWN") {
		t.Errorf("secrets are printed:\n%s", out.String())
	}
	if n := strings.Count(out.String(), "s3:p/"); n < 8 {
		t.Errorf("the block is named %d times only:\n%s", n, out.String())
	}
}
