package flags

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	logs "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"
)

const logFormatFlag = "logging-format"

// Values of --logging-format.
const (
	logFormatText = "text"
	logFormatJSON = logs.JSONLogFormat
)

// applyLogFormat makes klog, and everything that logs through it, write in the format of --logging-format. The format
// text is klog's own writer, so that its flags (--log-file and the like) work. The command line was read before.
func (s *Set) applyLogFormat() error {
	switch s.logFormat {
	case "", logFormatText:
		return nil
	case logFormatJSON:
	default:
		return fmt.Errorf("--logging-format %q is neither %s nor %s", s.logFormat, logFormatText, logFormatJSON)
	}
	if s.all.Changed("vmodule") {
		return errors.New("--vmodule works with --logging-format=text only")
	}
	verbosity, err := strconv.ParseUint(s.all.Lookup("v").Value.String(), 10, 32)
	if err != nil {
		return fmt.Errorf("-v: %w", err)
	}
	config := logs.NewLoggingConfiguration()
	config.Format, config.Verbosity = logFormatJSON, logs.VerbosityLevel(verbosity)
	// klog writes text to the same stream.
	logger, control := json.Factory{}.Create(*config, logs.LoggingOptions{
		ErrorStream: os.Stderr,
		InfoStream:  os.Stderr,
	})
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true), klog.FlushLogger(control.Flush))
	return nil
}
