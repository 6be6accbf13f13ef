-- The events stream: one entry a job and event, about the last thousand kept (data-model.md section 6).
-- An event is news, not state: an events key of a foreign type must not undo the change it reports.

local EVENTS_KEPT = '1000'

G.emit = function(events, event, id, ...)
  redis.pcall('XADD', events, 'MAXLEN', '~', EVENTS_KEPT, '*', 'event', event, 'jobId', id, ...)
end
