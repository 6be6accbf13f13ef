-- Write the events stream: one entry per job and event, trimmed to about 1,000 entries or the number set by
-- `set_event_retention`. An event is only a notification: a key of a foreign type must not undo the change it reports.

local KEPT = '1000'
local NAME = #'events'
local MANY, TRIMMED_EVERY = 16, 13

-- Return how many events the queue keeps. A number of its own is in the meta hash, next to the events key.
G.events_kept = function(events)
  local set = G.pcall('HGET', string.sub(events, 1, -NAME - 1) .. 'meta', 'maxLenEvents')
  return type(set) == 'string' and string.find(set, '^%d+$') and set or KEPT
end

G.emit = function(events, event, id, ...)
  G.pcall('XADD', events, 'MAXLEN', '~', G.events_kept(events), '*', 'event', event, 'jobId', id, ...)
end

-- Return whether a call that writes events of plain jobs trims the stream: a call with many events, and every call in
-- each thirteenth millisecond (13 divides no common timer interval). Most calls need not read how many events are
-- kept.
G.trims_events = function(now, count) return count > MANY or now % TRIMMED_EVERY == 0 end
