-- The events stream: one entry a job and event, about the last thousand kept, or what `keep_events` has set for the queue
-- (data-model.md section 6). An event is news, not state: a key of a foreign type must not undo the change it reports.

local KEPT = '1000'
local NAME = #'events'
local MANY, TRIMMED_EVERY = 16, 13

-- The queue's own number stands in its meta hash, beside the events key.
G.events_kept = function(events)
  local set = redis.pcall('HGET', string.sub(events, 1, -NAME - 1) .. 'meta', 'maxLenEvents')
  return type(set) == 'string' and string.find(set, '^%d+$') and set or KEPT
end

G.emit = function(events, event, id, ...)
  redis.pcall('XADD', events, 'MAXLEN', '~', G.events_kept(events), '*', 'event', event, 'jobId', id, ...)
end

-- Of calls that write events of plain jobs, those that trim: one with many, and each in every thirteenth millisecond
-- (a number that no timer is a multiple of). So most of them need not know how much is kept.
G.trims_events = function(now, count) return count > MANY or now % TRIMMED_EVERY == 0 end
