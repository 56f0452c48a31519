package osstest

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"testing"
)

// The example that the service's documentation computes step by step. Its
// signing key is given there and does not follow from the secret that stands
// beside it, so the derivation has a vector of its own below.
func TestPublishedExample(t *testing.T) {
	canonical := canonicalRequest("PUT", "/examplebucket/exampleobject", nil, http.Header{
		"Content-Disposition":  {"attachment"},
		"Content-Length":       {"3"},
		"Content-Md5":          {"ICy5YqxZB1uWSwcVLSNLcA=="},
		"Content-Type":         {"text/plain"},
		"X-Oss-Content-Sha256": {"UNSIGNED-PAYLOAD"},
		"X-Oss-Date":           {"20250411T064124Z"},
		"User-Agent":           {"not signed"},
	}, []string{"content-disposition", "content-length"}, unsigned)
	sum := sha256.Sum256([]byte(canonical))
	if got := hex.EncodeToString(sum[:]); got != "c46d96390bdbc2d739ac9363293ae9d710b14e48081fcb22cd8ad54b63136eca" {
		t.Errorf("digest is %s of\n%s", got, canonical)
	}
	sc, err := parseScope("LTAI/20250411/cn-hangzhou/oss/aliyun_v4_request")
	if err != nil {
		t.Fatal(err)
	}
	key, err := hex.DecodeString("3543b7686e65eda71e5e5ca19d548d78423c37e8ddba4dc9d83f90228b457c76")
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(mac(key, stringToSign("20250411T064124Z", sc, canonical))); got != "053edbf550ebd239b32a9cdfd93b0b2b3f2d223083aa61f75e9ac16856d61f23" {
		t.Errorf("signature is %s", got)
	}
}

// The vectors that the service's own SDKs share, from secret to signature.
func TestSharedVectors(t *testing.T) {
	query := []param{{"param1", "value1"}, {"+param1", "value3"}, {"|param1", "value4"}, {"+param2", ""}, {"|param2", ""}, {"param2", ""}}
	header := http.Header{
		"X-Oss-Head1": {"value"}, "Abc": {"value"}, "Zabc": {"value"}, "Xyz": {"value"}, "Content-Type": {"text/plain"},
		"X-Oss-Content-Sha256": {unsigned},
	}
	sc := scope{"ak", "20231216", "cn-hangzhou", "oss", "aliyun_v4_request"}
	for _, c := range []struct {
		when       string
		additional []string
		want       string
	}{
		{"20231216T162057Z", nil, "e21d18daa82167720f9b1047ae7e7f1ce7cb77a31e8203a7d5f4624fa0284afe"},
		{"20231216T172512Z", []string{"abc", "zabc"}, "4a4183c187c07c8947db7620deb0a6b38d9fbdd34187b6dbaccb316fa251212f"},
	} {
		header.Set("X-Oss-Date", c.when)
		canonical := canonicalRequest("PUT", "/bucket/1234+-/123/1.txt", query, header, c.additional, unsigned)
		if got := hex.EncodeToString(mac(signingKey("sk", sc), stringToSign(c.when, sc, canonical))); got != c.want {
			t.Errorf("signature with %q is %s of\n%s", c.additional, got, canonical)
		}
	}
}
