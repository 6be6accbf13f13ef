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

-- Positions of the fields that are read of a record. PROOF: what proves that this is the record of the entry's job, the
-- `timestamp` of a plain one and the `eid` of a chosen one.
local FIELDS = { 'state', 'fence', 'processedOn', 'revoked', 'data', 'opts', 'progress', 'proof', 'timeline' }
local AT = G.positions(FIELDS)
local STATE, FENCE, PROCESSED_ON, REVOKED = AT.state, AT.fence, AT.processedOn, AT.revoked
local DATA, OPTS, PROGRESS, PROOF, TIMELINE = AT.data, AT.opts, AT.progress, AT.proof, AT.timeline
-- Positions in the fields of the entry: jobId, its id, name, its name, plain or chosen, its timestamp.
local ENTRY_ID, ENTRY_NAME, PLAIN, ADDED = 2, 4, 5, 6
local JOB = G.rows.fetched_job
local ID, ENTRY, JOB_FENCE, NAME = JOB.id, JOB.entry, JOB.fence, JOB.name
local JOB_DATA, JOB_OPTS, TIMESTAMP = JOB.data, JOB.opts, JOB.timestamp

-- Write the activation of a job that becomes a lease.
local function write_leased(fetching, key, id, entry, opts)
  local lease, deadline = G.leases.start_plain(fetching, id, entry, opts)
  G.write_active(fetching, key, '1', deadline, 'lease', lease)
end

-- Write the activation of a job with a timeline.
local function write_with_timeline(q, fetching, key, id, entry, h)
  local timeline = G.timeline(q, id, h[TIMELINE], 'active', fetching.now, fetching.consumer)
  if fetching.lease then
    write_leased(fetching, key, id, entry, h[OPTS])
    if timeline then fetching.call('HSET', key, 'timeline', timeline) end
  elseif timeline then
    G.write_active(fetching, key, '1', fetching.now_text, 'timeline', timeline)
  else
    G.write_active(fetching, key, '1', fetching.now_text)
  end
end

-- Activate the job of a stream entry if it is plain. Return whether it was fetched; if not, nothing was changed.
-- Hot: one function, with few calls of others.
G.activate_plain = function(q, fetching, entry, fields)
  local kind, id, has_timeline = fields[PLAIN], fields[ENTRY_ID], fetching.timeline
  local key, proof, h = q.J .. id, fields[ADDED]
  if kind == 'chosen' and not has_timeline then
    proof = entry
    h = fetching.pcall('HMGET', key, 'state', 'fence', 'processedOn', 'revoked', 'data', 'opts', 'progress', 'eid')
  elseif kind ~= 'plain' then
    return false
  elseif has_timeline then
    h = fetching.pcall('HMGET', key, 'state', 'fence', 'processedOn', 'revoked', 'data', 'opts', 'progress', 'timestamp',
      'timeline')
  else
    h = fetching.pcall('HMGET', key, 'state', 'fence', 'processedOn', 'revoked', 'data', 'opts', 'progress', 'timestamp')
  end
  local data, opts, progress = h[DATA], h[OPTS], h[PROGRESS]
  -- Is this the record of the entry's job as it was added, apart from data and progress?
  if h[STATE] ~= 'waiting' or h[FENCE] or h[PROCESSED_ON] or h[REVOKED] or h[PROOF] ~= proof or not (data and opts) then
    return false
  end
  local now_text, jobs = fetching.now_text, fetching.jobs
  if has_timeline then
    write_with_timeline(q, fetching, key, id, entry, h)
  elseif fetching.lease then
    write_leased(fetching, key, id, entry, opts)
  else
    fetching.call('HSET', key, 'state', 'active', 'processedOn', now_text, 'lastActive', now_text, 'fence', '1')
  end
  fetching.bytes = fetching.bytes + #data
  if progress then
    jobs[#jobs + 1] = G.fetched_job(id, entry, 1, fields[ENTRY_NAME], data, opts, fields[ADDED], '0', progress, false, '0',
      false)
  else
    -- The table of the entry's fields becomes the row of the job: a new table would cost more than to set its fields.
    fields[TIMESTAMP] = fields[ADDED]
    fields[ID], fields[ENTRY], fields[JOB_FENCE], fields[NAME] = id, entry, 1, fields[ENTRY_NAME]
    fields[JOB_DATA], fields[JOB_OPTS] = data, opts
    jobs[#jobs + 1] = fields
  end
  return true
end
