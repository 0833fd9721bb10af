// Package plugin holds what kubectl grid says of clusters against what connections there would find.
// The flag -worlds.first takes the seed of the first world: a failure names that of its world.
package plugin
