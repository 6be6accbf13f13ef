-- Requeue a failed or completed job like a new one: all attempts again, without the fields of a revocation or of stalls,
-- and without a slot in its group.

-- Give the job a turn in its group, behind the present jobs. So the group is in use while the job waits, and its key cannot
-- move to another partition. A parent gets its turn when its children have ended.
local function rejoin(q, id, h, state)
  if state ~= 'waiting-children' then
    G.groups.rejoin(q, id, h)
  elseif G.count_of(redis.call('HGET', q.J .. id, 'orderingSeq')) > 0 then
    G.set(q, id, 'slot', '0')
  end
end

-- h: name, state, priority, lifo, rank, groupKey, opts of a failed or completed job. all_steps: delete its steps, as those of
-- a completed job. The caller removes it from the index of its state. Return the id of another job that has its
-- deduplication id: then nothing was changed.
G.requeue_failed = function(q, id, now, h, all_steps)
  local key, owner = q.J .. id, G.take_dedup_id(q, id, h.opts, now)
  if owner then return owner end
  G.flows.child_ended(q, id, G.flows.RETRIED, '', now)
  local state = 'waiting-children'
  if G.flows.open(q, id) > 0 then
    G.flows.wait(q, id, now)
    -- Requeued jobs are not delayed: it is ready as soon as its children have ended.
    redis.call('HSET', key, 'state', state, 'eid', '', 'delay', '0')
    redis.call('HDEL', key, 'notBefore')
    G.note_state(q, id, state, now)
  else
    state = G.put(q, id, now, h, nil, true)
  end
  G.steps.requeue(q, id, all_steps or h.state == 'completed')
  redis.call('HDEL', key, 'revoked', 'stalledCount', 'suspectLimit', 'fallbackIndex', 'failedType', 'stacktrace', 'processedOn',
    'lastActive', 'childFailed', 'failureReason', 'autoRetries', 'returnvalue', 'discarded')
  if h.state == 'completed' then redis.call('HDEL', key, 'cursor') end -- it starts from the beginning; a failed job continues
  if h.groupKey then rejoin(q, id, h, state) end
  redis.call('HSET', key, 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '')
end

-- Requeue a failed job, or a completed one if `completed`. Return the reply of requeue_job.
G.requeue_one = function(q, id, completed)
  local h = G.job_of(q, id)
  if not h.state then return 'gone' end
  local has_completed = h.state == 'completed' and completed
  if h.state ~= 'failed' and not has_completed then return h.state end
  local owner = G.requeue_failed(q, id, G.now(q), h, completed)
  if owner then return 'owned ' .. h.state .. ' ' .. owner end
  redis.call('ZREM', has_completed and q.completed or q.failed, id)
  G.results.left(q, 1)
  G.emit(q.events, 'retried', id)
  return 'ok'
end
