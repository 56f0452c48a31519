// Package archtest holds a test alone: it checks that packages import each other
// in the direction that docs/decisions.md gives.
package archtest
