// Package plugin holds what kubectl grid says of clusters against what connections there would find.
package plugin
