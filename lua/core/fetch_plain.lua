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

local NO_JOB = {}

-- Read the record of a job with a chosen id, or of any plain job of a queue with timelines. Return a table without a
-- state if the job is not plain.
local function read_other(fetching, key, kind, entry)
  if kind == 'plain' then return fetching.pcall('HMGET', key, unpack(FIELDS_AND_TIMELINE)) end
  if kind ~= 'chosen' or fetching.timeline then return NO_JOB end
  local h = fetching.pcall('HMGET', key, unpack(FIELDS_AND_ENTRY))
  return h[ENTRY] == entry and h or NO_JOB
end

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

-- Write the activation of a lease, or of a job with a timeline.
local function write_other(q, fetching, key, id, entry, h)
  local timeline = fetching.timeline and G.timeline(q, id, h[TIMELINE], 'active', fetching.now, fetching.consumer)
  if fetching.lease then
    write_leased(fetching, key, id, entry, h[OPTS], timeline)
  elseif timeline then
    fetching.call('HSET', key, 'state', 'active', 'processedOn', fetching.now_text, 'lastActive', fetching.now_text,
      'fence', '1', 'timeline', timeline)
  else
    fetching.call('HSET', key, 'state', 'active', 'processedOn', fetching.now_text, 'lastActive', fetching.now_text,
      'fence', '1')
  end
end

-- Activate the job of a stream entry if it is plain. Return whether it was fetched; if not, nothing was changed.
-- Hot: one function, without calls of others, except for leases and timelines.
G.activate_plain = function(q, fetching, entry, fields)
  local kind, id = fields[PLAIN], fields[ID]
  local key, h = q.J .. id
  if kind == 'plain' and not fetching.timeline then
    h = fetching.pcall('HMGET', key, unpack(FIELDS))
  else
    h = read_other(fetching, key, kind, entry)
  end
  local timestamp, data, opts, progress = h[TIMESTAMP], h[DATA], h[OPTS], h[PROGRESS]
  -- Is this the record of the entry's job as it was added, apart from data and progress?
  if h[STATE] ~= 'waiting' or h[FENCE] or h[PROCESSED_ON] or h[REVOKED] or timestamp ~= fields[ADDED]
    or not (data and opts) then
    return false
  end
  local now_text, jobs = fetching.now_text, fetching.jobs
  if fetching.lease or fetching.timeline then
    write_other(q, fetching, key, id, entry, h)
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
