package upload

// NewSmallParts is NewParts with parts of another size, more than 64 KiB, so
// that tests need not move megabytes.
var NewSmallParts = newParts
