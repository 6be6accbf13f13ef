-- Fetch a plain job: one that `add` wrote without rare options. The field `plain` of its stream entry is the `timestamp`
-- of its record, so that an entry which a peer left behind means no later job with the same id. An id that a caller chose
-- may be used again within that millisecond, so the entry has the field `chosen` in its place, and the record has the id
-- of the entry.
-- While such a job waits in that entry and has never run, most fields of a fetch have the value of the add or are
-- absent (docs/reference/data-model.md, "Plain jobs"), so they are not read:
--   name                                                 never changes, and is in the entry
--   expireAt, groupKey, budgetKey, fairKey, rank         are written by an add or flow with these options only
--   attemptsMade, stacktrace, stalledCount and those of an earlier run    are written when an attempt has ended
--   priority                                             whoever changes it moves the job to another place
-- Everything else, and every surprise, takes the path of core/fetch.lua. So do all jobs of a call with ranks or limits of
-- names (`reads_plain`, core/functions/exchange.lua).

local FIELDS = { 'state', 'fence', 'processedOn', 'revoked', 'timestamp', 'data', 'opts', 'progress' }
local FIELDS_AND_ENTRY = { 'state', 'fence', 'processedOn', 'revoked', 'timestamp', 'data', 'opts', 'progress', 'eid' }
local FIELDS_AND_TIMELINE = { 'state', 'fence', 'processedOn', 'revoked', 'timestamp', 'data', 'opts', 'progress', 'timeline' }
local AT = G.positions(FIELDS_AND_TIMELINE)
local STATE, FENCE, PROCESSED_ON, REVOKED = AT.state, AT.fence, AT.processedOn, AT.revoked
local TIMESTAMP, DATA, OPTS, PROGRESS, TIMELINE = AT.timestamp, AT.data, AT.opts, AT.progress, AT.timeline
local ENTRY = #FIELDS_AND_ENTRY
-- Positions in the fields of the entry: jobId, its id, name, its name, plain or chosen, its timestamp.
local ID, NAME, PLAIN, ADDED = 2, 4, 5, 6

local function write_leased(fetching, key, id, entry, opts, timeline)
  local lease, deadline
  if opts == '{}' then
    lease, deadline = G.leases.start_plain(fetching, id, entry)
  else
    lease, deadline = G.leases.start(fetching, id, entry, 1, opts)
  end
  fetching.call('HSET', key, 'state', 'active', 'processedOn', fetching.now_text, 'lastActive', deadline, 'fence', '1',
    'lease', lease)
  if timeline then fetching.call('HSET', key, 'timeline', timeline) end
end

-- Activate the job of a stream entry if it is plain. Return whether it was fetched; if not, nothing was changed.
-- Hot: one function, without calls of others, except for leases and timelines.
G.activate_plain = function(q, fetching, entry, fields)
  local kind, read = fields[PLAIN], fetching.timeline and FIELDS_AND_TIMELINE or FIELDS
  if kind == 'chosen' and not fetching.timeline then
    read = FIELDS_AND_ENTRY
  elseif kind ~= 'plain' then
    return false
  end
  local id = fields[ID]
  local key = q.J .. id
  local h = fetching.pcall('HMGET', key, unpack(read))
  local timestamp, data, opts, progress = h[TIMESTAMP], h[DATA], h[OPTS], h[PROGRESS]
  -- Is this the record of the entry's job as it was added, apart from data and progress?
  if h[STATE] ~= 'waiting' or h[FENCE] or h[PROCESSED_ON] or h[REVOKED] or timestamp ~= fields[ADDED]
    or not (data and opts) or read == FIELDS_AND_ENTRY and h[ENTRY] ~= entry then
    return false
  end
  local now_text, jobs = fetching.now_text, fetching.jobs
  local timeline = fetching.timeline and G.timeline(q, id, h[TIMELINE], 'active', fetching.now, fetching.consumer)
  if fetching.lease then
    write_leased(fetching, key, id, entry, opts, timeline)
  elseif timeline then
    fetching.call('HSET', key, 'state', 'active', 'processedOn', now_text, 'lastActive', now_text, 'fence', '1',
      'timeline', timeline)
  else
    fetching.call('HSET', key, 'state', 'active', 'processedOn', now_text, 'lastActive', now_text, 'fence', '1')
  end
  fetching.bytes = fetching.bytes + #data
  if progress then
    jobs[#jobs + 1] = G.fetched_job(id, entry, 1, fields[NAME], data, opts, timestamp, '0', progress, false, '0', false)
  else
    jobs[#jobs + 1] = { id, entry, 1, fields[NAME], data, opts, timestamp }
  end
  return true
end
