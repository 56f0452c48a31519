package mimetype

import "testing"

func TestByName(t *testing.T) {
	for name, want := range map[string]string{
		"a.txt": "text/plain", "A.TXT": "text/plain", "f.PNG": "image/png",
		"f.csv": "text/csv", "f.json": "application/json", "f.js": "text/javascript",
		"f.py": "text/x-python", "f.svg": "image/svg+xml", "f.webp": "image/webp",
		"f.md": "text/markdown", "f.ico": "image/vnd.microsoft.icon", "f.h5": "application/x-hdf5",
		"f.tsv": "text/tab-separated-values", "f.wasm": "application/wasm",
		"f.docx":   "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
		"f.xlsx":   "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
		"f.pptx":   "application/vnd.openxmlformats-officedocument.presentationml.presentation",
		"报告 😀.csv": "text/csv",

		// Packed: the type of what is inside.
		"f.tar.gz": "application/x-tar", "f.tgz": "application/x-tar", "f.TGZ": "application/x-tar",
		"f.tbz2": "application/x-tar", "f.txz": "application/x-tar", "f.svgz": "image/svg+xml",
		"f.csv.gz": "text/csv", "f.csv.Z": "text/csv", "f.csv.br": "text/csv",
		"f.gz": Unknown, "f.csv.GZ": Unknown, "f.csv.z": Unknown,

		// No extension, or one that nobody registered.
		"": Unknown, "f": Unknown, ".txt": Unknown, "...txt": Unknown, "f.": Unknown, ".hid": Unknown,
		".a.txt": "text/plain", "-rf": Unknown, "f.ipynb": Unknown, "f.npy": Unknown,
		"f.pkl": Unknown, "f.db": Unknown, "f.log": Unknown, "f.ini": Unknown, "f.unknownext": Unknown,
		"f.txt ": Unknown,
	} {
		if got := ByName(name); got != want {
			t.Errorf("ByName(%q) = %q, want %q", name, got, want)
		}
	}
}
