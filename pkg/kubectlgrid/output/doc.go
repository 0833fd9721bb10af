// Package output writes what kubectl grid prints: tables as kubectl writes them, JSON and YAML.
package output
