// Package rules holds the rules that this repository keeps, as tests.
package rules
