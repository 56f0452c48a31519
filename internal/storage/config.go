package storage

import "strings"

// DefaultPrefix is the prefix of a block that forwards none.
const DefaultPrefix = "workspaces/"

// ParseConfig reads the storage block of a request. Values are trimmed; one that
// is not a string counts as absent, and so does one that is blank. A block that
// says too little or names an unknown provider is not an error: it is
// ineffective, which Opener.Open tells.
func ParseConfig(block map[string]any) Config {
	text := func(name string) string {
		s, _ := block[name].(string)
		return strings.TrimSpace(s)
	}
	c := Config{
		Provider:           text("provider"),
		Prefix:             text("prefix"),
		S3Bucket:           text("s3_bucket"),
		S3Region:           text("s3_region"),
		S3Endpoint:         text("s3_endpoint"),
		S3AccessKey:        text("s3_access_key"),
		S3SecretKey:        text("s3_secret_key"),
		OSSBucket:          text("oss_bucket"),
		OSSEndpoint:        text("oss_endpoint"),
		OSSAccessKeyID:     text("oss_access_key_id"),
		OSSAccessKeySecret: text("oss_access_key_secret"),
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	return c
}
